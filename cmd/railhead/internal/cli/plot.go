package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// AddPlot adds --plot.
func AddPlot(f *pflag.FlagSet, path *string, what string) {
	f.StringVar(path, "plot", "", "plot "+what+" to this SVG file")
}

// CreatePlot creates the file of --plot before a long run, so that a wrong path fails at once; nil without the flag. A name that ends like
// another format is refused.
func CreatePlot(path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	if ext := filepath.Ext(path); ext != "" && !strings.EqualFold(ext, ".svg") {
		return nil, Usagef("--plot %s: plots are SVG: use the name %s", path, strings.TrimSuffix(path, ext)+".svg")
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, Failuref("--plot: %w", err)
	}
	return f, nil
}
