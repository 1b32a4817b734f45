// Package abi checks that the shared and the static library keep their ABI. railhead.abi records it: exported symbols with their
// versions, signatures, layouts of structs, values of constants.
//
// It owns the record and no code. The tests write the record only with -update. A declaration in railhead.h that their parser does
// not understand fails them.
package abi
