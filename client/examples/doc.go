// Package examples holds example programs in C, C++ and Go; README.md says what each shows. Its test builds every example without make
// and runs it.
package examples
