// Package programs holds tests that compile the library and programs in C and C++ (folder c) with g++ alone, also with sanitizers,
// and run them against a daemon of the test. No Go is in what they test.
package programs
