// Package hostile holds tests of the client library against a daemon that hangs, dies or breaks the protocol, and against a rank that
// writes an invalid abort word.
package hostile
