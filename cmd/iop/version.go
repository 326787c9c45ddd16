package main

import (
	"cmp"
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

// revision is of the repository, where the linker was told: -ldflags "-X main.revision=...". A build in a clone knows it by
// itself; one in a copy of the files, such as an image's, does not.
var revision string

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print what this binary was built from",
		Long: `Print what this binary was built from: version, repository revision, Go version and
platform. A binary built outside the repository has a revision only if the builder
set it (-ldflags "-X main.revision=...").`,
		Example: "  iop version --json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := readBuildInfo()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), info)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), info.line())
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// line says for a person what is known. A binary that was built outside a repository knows no revision.
func (b buildInfo) line() string {
	revision := "no revision recorded"
	if b.Revision != "" {
		revision = fmt.Sprintf("%.12s", b.Revision)
		if b.Modified {
			revision += " with changes"
		}
		if b.Time != "" {
			revision += ", " + b.Time
		}
	}
	return fmt.Sprintf("iop %s (%s) %s %s", b.Version, revision, b.Go, b.Platform)
}

// readBuildInfo returns what the binary was built from. Its Version is the one source of what the Edge, its console and
// metrics, a Node and "iop version" call the version: Go's, or where Go knows none a name made of the revision.
func readBuildInfo() buildInfo {
	info := buildInfo{Version: unknownVersion, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info.Revision = revision
	if build, ok := debug.ReadBuildInfo(); ok {
		info.Version = cmp.Or(build.Main.Version, unknownVersion)
		for _, s := range build.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Revision = cmp.Or(info.Revision, s.Value)
			case "vcs.time":
				info.Time = s.Value
			case "vcs.modified":
				info.Modified = s.Value == "true"
			}
		}
	}
	if info.Version == unknownVersion && info.Revision != "" {
		info.Version = "devel-" + info.Revision[:min(12, len(info.Revision))]
	}
	return info
}

// unknownVersion is what Go calls a build of which it knows no version.
const unknownVersion = "(devel)"
