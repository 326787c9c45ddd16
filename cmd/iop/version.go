package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildInfo is what `iop version --json` answers.
type buildInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the repository
	Time     string `json:"time,omitempty"`     // of that revision
	Modified bool   `json:"modified,omitempty"` // the tree had changes that no commit holds
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print what this binary was built from",
		Example: "  iop version --json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := readBuildInfo()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), info)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "iop %s", info.Version)
			if info.Revision != "" {
				fmt.Fprintf(cmd.OutOrStdout(), " (%.12s, %s)", info.Revision, info.Time)
			}
			fmt.Fprintf(cmd.OutOrStdout(), " %s %s\n", info.Go, info.Platform)
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func readBuildInfo() buildInfo {
	info := buildInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	if build.Main.Version != "" {
		info.Version = build.Main.Version
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Revision = s.Value
		case "vcs.time":
			info.Time = s.Value
		case "vcs.modified":
			info.Modified = s.Value == "true"
		}
	}
	return info
}
