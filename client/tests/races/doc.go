// Package races plays the client library's races from seeds. The library's objects are linked with a world (folder c) that replaces
// threads, sockets, futexes and the clock: one thread runs at a time, and a seed decides which. A daemon in that world answers, dies and
// starts again at any point. world.h describes it.
//
// Three builds play the same seeds. The one with hooks also switches threads at atomic operations. At each store of the library it checks
// what must hold at any time, and at each access that the memory was not freed. The deep run adds AddressSanitizer with
// UndefinedBehaviorSanitizer, and ThreadSanitizer, which does not see the baton that the threads pass.
//
// orders.txt records what neither shows: the orders of accesses to memory that processes share, and the wake-ups. It has those of kernels/host
// too, which the memory model does not run.
package races
