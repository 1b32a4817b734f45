// Package layering holds one test: that packages import only what the architecture lets them (docs/architecture.md,
// "Folders"). Arrows that point upward make a leaf depend on policy, and in the end everything on everything.
package layering
