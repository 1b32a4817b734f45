package cli

import (
	"os"

	"github.com/spf13/pflag"
)

// AddPlot adds --plot.
func AddPlot(f *pflag.FlagSet, path *string, what string) {
	f.StringVar(path, "plot", "", "plot "+what+" to this SVG file")
}

// CreatePlot creates the file of --plot before a long run, so that a wrong path fails at once; nil without the flag.
func CreatePlot(path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, Failuref("--plot: %w", err)
	}
	return f, nil
}
