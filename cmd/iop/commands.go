package main

import "github.com/spf13/cobra"

// commands lists the commands of the binary, each made in a file of its own.
func commands() []*cobra.Command {
	return []*cobra.Command{newSimCommand()}
}
