package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Complete makes the shell offer values for a flag.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// CompleteFrom makes the shell offer values for a flag that depend on the flags given before it.
func CompleteFrom(cmd *cobra.Command, flag string, values func() []string) {
	must(cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values(), cobra.ShellCompDirectiveNoFileComp
	}))
}

// CompleteList makes the shell offer values for a flag that takes a list, separated by commas: those that are not in the list yet.
func CompleteList(cmd *cobra.Command, flag string, values ...string) {
	must(cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		given := strings.Split(typed, ",")
		before := strings.Join(given[:len(given)-1], ",")
		if before != "" {
			before += ","
		}
		var offers []string
		for _, v := range values {
			if !slices.Contains(given[:len(given)-1], v) {
				offers = append(offers, before+v)
			}
		}
		return offers, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}))
}

// CompleteFile makes the shell offer files for a flag, those with one of the endings first.
func CompleteFile(cmd *cobra.Command, flag string, endings ...string) {
	must(cmd.MarkFlagFilename(flag, endings...))
}

func must(err error) {
	if err != nil {
		panic("cli: " + err.Error()) // the program registers a flag that it does not have, or twice
	}
}
