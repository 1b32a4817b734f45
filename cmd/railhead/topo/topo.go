// Package topo is `railhead topo`: it shows a machine's hardware topology.
package topo

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/topo"
	"railhead/internal/gpus"
)

// outputs are the formats of --output.
var outputs = map[string]func(*topo.Graph, io.Writer) error{
	"text": (*topo.Graph).WriteText,
	"json": (*topo.Graph).WriteJSON,
	"xml":  (*topo.Graph).WriteXML,
	"svg":  (*topo.Graph).WriteSVG,
}

// Command is `railhead topo`.
func Command() *cobra.Command {
	var file, output string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "Show the hardware topology: devices, and the paths between them",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				if cmd.Flags().Changed("output") && output != "json" {
					return cli.Usagef("topo: --json and --output %s exclude each other", output)
				}
				output = "json"
			}
			write, known := outputs[output]
			if !known {
				return cli.Usagef("topo: --output %.40q is unknown; use text, json, xml or svg", output)
			}
			g, err := readTopology(file)
			if err != nil {
				return cli.Failure(err)
			}
			if g.NoGPUs != "" {
				fmt.Fprintln(os.Stderr, "railhead: no GPUs:", g.NoGPUs)
			}
			for _, w := range g.Warnings {
				fmt.Fprintln(os.Stderr, "railhead: warning:", w)
			}
			if err := write(g.Graph, cmd.OutOrStdout()); err != nil {
				return cli.Failure(err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "file", "", "topology file to show instead of this machine: NCCL XML (NCCL_TOPO_DUMP_FILE) or the JSON of --output json")
	f.StringVar(&output, "output", "text", "format: text, json, xml (for NCCL_TOPO_FILE) or svg")
	cli.AddJSON(f, &asJSON)
	cli.Complete(cmd, "output", "text", "json", "xml", "svg")
	cli.CompleteFile(cmd, "file", "xml", "json")
	return cmd
}

// readTopology reads a file, or this machine where none is given. A file that begins with '<' is XML, any other is JSON.
func readTopology(file string) (gpus.Machine, error) {
	if file == "" {
		return gpus.ReadMachine()
	}
	f, err := os.Open(file)
	if err != nil {
		return gpus.Machine{}, fmt.Errorf("topo: %w", err)
	}
	defer func() { _ = f.Close() }()
	first := make([]byte, 512)
	n, err := io.ReadFull(f, first)
	if n == 0 {
		return gpus.Machine{}, fmt.Errorf("topo: %s: %w", file, err)
	}
	all := io.MultiReader(bytes.NewReader(first[:n]), f)
	read := topo.ReadJSON
	if bytes.HasPrefix(bytes.TrimSpace(first[:n]), []byte("<")) {
		read = topo.ReadXML
	}
	g, err := read(all)
	if err != nil {
		return gpus.Machine{}, fmt.Errorf("%s: %w", file, err)
	}
	return gpus.Machine{Graph: g}, nil
}
