// Package flight interprets the ranks' flight records: it reads them from the control segment, finds the rank of a group that is
// behind, and prints records as text and in the format of PyTorch's flight recorder analyser.
//
// It owns the reader's half of the records' protocol (kernels/include/railhead/base/flight_record.h has the writer's) and the
// verdict. It must never do I/O or read a clock: package group hands it words of memory and the time. It trusts nothing
// that it reads: a rank can write anything into its record, at any time.
package flight
