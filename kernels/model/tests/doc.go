// Package modeltests runs the memory model (../README.md) on the protocols of kernels/include: scenarios, mistakes, changed orders and
// litmus programs. It is a package of its own, so that it has a time limit of its own.
package modeltests
