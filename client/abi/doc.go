// Package abi holds the shared and the static library to what programs that are built against them rely on. railhead.abi
// is the record of it: exported symbols with their versions, signatures, layouts of structs, values of constants.
//
// It owns that record and no code. The tests never write it unless they are run with -update. They trust the compiler, and
// railhead.h to be written plainly: a declaration that they do not understand fails them.
package abi
