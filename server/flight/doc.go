// Package flight makes sense of the ranks' flight records: it reads them out of the control segment, says which rank of a group
// is behind, and writes records down for people and for PyTorch's flight recorder analyser.
//
// It owns the reader's half of the records' protocol (kernels/include/railhead/base/flight_record.h has the writer's) and the
// verdict. It must never do I/O or read a clock: package group hands it words of memory and the time. It trusts nothing
// that it reads: a rank can write anything into its record, at any time.
package flight
