package sizeplot

import (
	"fmt"
	"path/filepath"
	"strings"
)

// CheckName refuses a name of a file for WriteSVG that ends like another format.
func CheckName(path string) error {
	if ext := filepath.Ext(path); ext != "" && !strings.EqualFold(ext, ".svg") {
		return fmt.Errorf("--plot %s: plots are SVG: use the name %s", path, strings.TrimSuffix(path, ext)+".svg")
	}
	return nil
}
