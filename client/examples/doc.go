// Package examples holds programs to begin with, in C, C++ and Go; README.md says what each shows.
//
// It owns no code of its own: its test builds every example with the library, by the compilers alone, and runs it.
package examples
