// Package nodelink connects the proxies of two nodes: messages with a small header and a payload.
package nodelink
