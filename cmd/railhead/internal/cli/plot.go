package cli

import (
	"os"

	"github.com/spf13/pflag"

	"railhead/internal/sizeplot"
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
	if err := sizeplot.CheckName(path); err != nil {
		return nil, Usagef("%w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, Failuref("--plot: %w", err)
	}
	return f, nil
}
