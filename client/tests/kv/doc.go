// Package kv tests KV transfer through the library, a daemon and its proxy process.
package kv
