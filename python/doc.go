// Package python holds the Python package railhead, which calls the shared library through ctypes, and the Go test that runs its tests.
// The Python package trusts the library but not its callers: it checks sizes and types before every call.
package python
