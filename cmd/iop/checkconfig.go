package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/gateway/route"
)

// check looks for faults in the file of routes: the fault, or all of them, a line each, go to standard error as an
// editor reads them. Then it says what the file would change at the Edge that runs with these settings.
func (c *edgeSettings) check(cmd *cobra.Command, s *settings) error {
	if c.Config == "" {
		return s.fault("CONFIG", "is required by --check-config")
	}
	table, err := route.Load(c.Config, route.Managed(c.managed()))
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("the route file can't be read (IOP_EDGE_CONFIG, --config): %w", err)
	}
	if err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), err)
		return errTold
	}
	out := cmd.OutOrStdout()
	fate := "served under their own names"
	if !table.ServesAdvertised() {
		fate = "refused"
	}
	if _, err = fmt.Fprintf(out, "%s: %s, ok\nmodels that no route names are %s\n", c.Config, counted(len(table.Routes()), "route"), fate); err != nil {
		return err
	}
	url, checked, err := c.compare(cmd)
	if err != nil {
		// The file is right; that there is nothing to compare it with is no fault.
		if _, err = fmt.Fprintf(out, "not compared with routes in force: %s\n", onTerminal(err.Error())); err != nil {
			return err
		}
		return printCoverage(out, "", &admin.Coverage{Reserved: reserved(table), Unknown: admin.UnknownParameters(table)})
	}
	if err := printChanges(out, url, checked.Changes); err != nil {
		return err
	}
	return printCoverage(out, checked.AdvertisedModels, &checked.Coverage)
}

// reserved lists the models of the file alone that are served only through their routes.
func reserved(table *route.Table) (list []admin.ReservedModel) {
	for _, model := range table.Reserved() {
		r := table.ReservedFor(model)
		list = append(list, admin.ReservedModel{Model: model, Route: r.Name, Limits: table.Limits(r)})
	}
	return list
}

// printCoverage says how routes, what Nodes offer and the API keys fit together; advertised is the file's advertised_models.
func printCoverage(w io.Writer, advertised string, c *admin.Coverage) error {
	unrouted := "served without a route"
	if advertised == "refuse" {
		unrouted = "offered and refused, because no route names them"
	}
	for _, part := range []struct {
		title string
		lines []string
	}{
		{unrouted, c.Unrouted}, {"served only through a route, which limits them", texts(c.Reserved)}, {"targets that no connected Node offers", texts(c.Missing)},
		{"principals that no live API key has", texts(c.Absent)}, {"slots that do not exist", texts(c.Slots)}, {"defaults and caps that no known API or engine has", texts(c.Unknown)},
	} {
		if len(part.lines) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s:\n", part.title); err != nil {
			return err
		}
		for _, line := range part.lines {
			if _, err := fmt.Fprintf(w, "  %s\n", onTerminal(line)); err != nil {
				return err
			}
		}
	}
	return nil
}

func texts[T fmt.Stringer](list []T) (lines []string) {
	for _, x := range list {
		lines = append(lines, x.String())
	}
	return lines
}

// compare asks the Edge that runs with these settings what the file would change.
func (c *edgeSettings) compare(cmd *cobra.Command) (url string, checked admin.ConfigCheck, err error) {
	o := bindOperator(&cobra.Command{})
	if err := o.load(); err != nil {
		return "", checked, err
	}
	o.progress = cmd.ErrOrStderr
	o.state.State = c.State
	if !o.adminBound.given("URL") {
		o.admin.URL = "http://" + reachable(c.AdminListen)
	}
	data, err := os.ReadFile(c.Config) // its size was bounded by who read it before
	if err != nil {
		return "", checked, err
	}
	return o.admin.URL, checked, o.call(cmd.Context(), "POST", "/config/check", yamlFile(data), &checked)
}

// reachable is the address at which this machine reaches a listener.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listen
}

func printChanges(w io.Writer, url string, changes []admin.ConfigChange) error {
	if len(changes) == 0 {
		_, err := fmt.Fprintf(w, "no change to the routes in force at %s\n", onTerminal(url))
		return err
	}
	if _, err := fmt.Fprintf(w, "changes to the routes in force at %s:\n", onTerminal(url)); err != nil {
		return err
	}
	for _, c := range changes {
		mark := "      "
		if c.Opens {
			mark = "OPENS "
		}
		if _, err := fmt.Fprintf(w, "  %s%s\n", mark, onTerminal(route.Change(c).String())); err != nil {
			return err
		}
	}
	return nil
}
