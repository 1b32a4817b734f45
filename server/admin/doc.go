// Package admin serves health, metrics and reports over HTTP, for people and their tools.
//
// It owns the endpoints and what their JSON looks like. It must never change anything in the daemon, and never answer another
// machine: TCP is loopback only, and what names groups is on a unix socket that only this user opens. It trusts nobody who
// asks: requests, their number and their time are bounded.
package admin
