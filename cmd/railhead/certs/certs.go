// Package certs is `railhead certs`: it makes the certificates by which the nodes of a cluster know each other.
package certs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/nodetls"
)

// A year: certificates are renewed by hand.
const defaultValid = 8760 * time.Hour

// Command is `railhead certs`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make the certificates of a cluster's nodes",
		Long: "Makes a certificate authority, and certificates of nodes. With them the nodes of a cluster know each other (TLS 1.3). A certificate\n" +
			"is for a node's name. Where the node is does not matter.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return cli.Usagef("certs: no command given; available: authority, node")
		},
	}
	cmd.AddCommand(authorityCommand(), nodeCommand())
	return cmd
}

// report is what a command has made.
type report struct {
	Node         string    `json:"node,omitempty"`
	Certificate  string    `json:"certificate"`
	Key          string    `json:"key"`
	AuthorityPEM string    `json:"authority,omitempty"` // a node's copy of the authority's certificate
	ValidUntil   time.Time `json:"valid_until"`
}

func authorityCommand() *cobra.Command {
	var dir string
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:     "authority --dir DIR",
		Short:   "Make the authority of a cluster: a certificate for every node, and a key that stays",
		Example: "  railhead certs authority --dir ca",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return cli.Usagef("certs authority: --dir is missing: the directory of the authority's files")
			}
			create := nodetls.CreateAuthority
			if force {
				create = nodetls.ReplaceAuthority
			}
			a, err := create(dir, time.Now())
			if err != nil {
				return failed("authority", err, "with --force it is replaced, and every node needs a new certificate")
			}
			return show(cmd.OutOrStdout(), asJSON, &report{
				Certificate: filepath.Join(dir, nodetls.AuthorityFile), Key: filepath.Join(dir, nodetls.AuthorityKeyFile), ValidUntil: a.Ends(),
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "directory of the authority's files; it is made if there is none")
	addCommon(f, &force, &asJSON)
	must(cmd.MarkFlagDirname("dir"))
	return cmd
}

func nodeCommand() *cobra.Command {
	var dir, out string
	var valid time.Duration
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:     "node NAME --dir DIR --out OUT",
		Short:   "Make a node's certificate and key, by the authority",
		Example: "  railhead certs node node-1 --dir ca --out node-1",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("certs node takes the name of one node, got %q", args)
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkNode(args[0], dir, out, valid); err != nil {
				return err
			}
			a, err := nodetls.LoadAuthority(dir)
			if err != nil {
				return failed("node", err, "")
			}
			now := time.Now()
			if err := a.IssueTo(out, args[0], now, valid, force); err != nil {
				return failed("node", err, "with --force it is replaced")
			}
			return show(cmd.OutOrStdout(), asJSON, &report{
				Node: args[0], Certificate: filepath.Join(out, nodetls.NodeFile), Key: filepath.Join(out, nodetls.NodeKeyFile),
				AuthorityPEM: filepath.Join(out, nodetls.AuthorityFile), ValidUntil: now.Add(valid),
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "directory of the authority's files")
	f.StringVar(&out, "out", "", "directory for the node's files; it is made if there is none")
	f.DurationVar(&valid, "valid", defaultValid, "how long the certificate is valid")
	addCommon(f, &force, &asJSON)
	must(cmd.MarkFlagDirname("dir"), cmd.MarkFlagDirname("out"))
	return cmd
}

// checkNode checks the command line.
func checkNode(node, dir, out string, valid time.Duration) error {
	switch {
	case dir == "":
		return cli.Usagef("certs node: --dir is missing: the directory of `railhead certs authority`")
	case out == "":
		return cli.Usagef("certs node: --out is missing: the directory for the node's files")
	case valid <= 0:
		return cli.Usagef("certs node: --valid %v is not above 0", valid)
	}
	if err := nodetls.CheckNode(node); err != nil {
		return cli.Usagef("certs node: %w", err)
	}
	return nil
}

func addCommon(f *pflag.FlagSet, force, asJSON *bool) {
	f.BoolVar(force, "force", false, "replace files that exist")
	cli.AddJSON(f, asJSON)
}

// failed adds to an error about a file that exists what to do.
func failed(command string, err error, ifExists string) error {
	if errors.Is(err, fs.ErrExist) {
		return cli.Failuref("certs %s: %w: %s", command, err, ifExists)
	}
	return cli.Failuref("certs %s: %w", command, err)
}

func show(out io.Writer, asJSON bool, r *report) error {
	r.ValidUntil = r.ValidUntil.UTC().Truncate(time.Second)
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	until := r.ValidUntil.Format(time.DateOnly)
	if r.Node == "" {
		_, err := fmt.Fprintf(out, "authority, valid until %s\n%s: certificate, each node gets a copy\n%s: key, stays here: its owner can be any node\n",
			until, r.Certificate, r.Key)
		return err
	}
	_, err := fmt.Fprintf(out, "node %s, valid until %s\n%s: certificate\n%s: key, for this node only\n%s: the authority's certificate\n",
		r.Node, until, r.Certificate, r.Key, r.AuthorityPEM)
	return err
}

func must(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		panic("certs: " + err.Error()) // a flag that the command does not have
	}
}
