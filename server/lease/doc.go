// Package lease watches lease words: futex words that the kernel marks when the thread that holds them dies, long before the
// process's memory is gone and its socket closes. Sessions have one each, and the ranks of groups.
//
// It owns the threads that sleep on words, not the memory that the words lie in. It must never trust a word's value:
// clients may write anything there, at any time. A watcher only reports, once, that a word was marked.
package lease
