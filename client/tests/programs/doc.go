// Package programs holds tests that run programs in C and C++ (folder c), which link the library without Go, against a daemon. Some tests
// compile both with sanitizers.
package programs
