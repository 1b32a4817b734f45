// Package python holds the Python package railhead, which calls the shared library through ctypes, and the Go test that runs
// its tests. It has no Go code of its own. The Python package trusts the library, and nothing that its callers pass: sizes
// and types are checked before every call.
package python
