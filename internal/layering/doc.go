// Package layering tests that packages import only what the architecture allows (docs/architecture.md, "Folders"). An import that
// points upward makes a leaf depend on policy.
package layering
