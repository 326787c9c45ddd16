package main

import (
	"context"
	"fmt"
	"slices"

	"iop/gateway/admin"
	"iop/gateway/spelling"
)

// doubts says of an empty report which of its filters nothing has as a name now: it may be mistyped. Names of the past are no fault, so
// that it is not asked about a report with rows.
func (u *usageFlags) doubts(ctx context.Context, o *operator) (lines []string) {
	for _, filter := range []struct {
		kind, value string
		names       func(context.Context) ([]string, error)
	}{
		{"route", u.route, o.routeNames}, {"Node", u.node, o.nodeNames}, {"principal", u.principal, o.principals},
	} {
		if filter.value == "" {
			continue
		}
		names, err := filter.names(ctx)
		if err != nil || slices.Contains(names, filter.value) {
			continue // a report that was made is not to fail on this
		}
		line := fmt.Sprintf("no %s is named %s", filter.kind, filter.value)
		if near := spelling.Nearest(filter.value, names); near != "" {
			line += "; did you mean " + near + "?"
		}
		lines = append(lines, line)
	}
	return lines
}

func (o *operator) routeNames(ctx context.Context) (names []string, err error) {
	var routes listing[admin.Route]
	err = o.call(ctx, "GET", "/routes", nil, &routes)
	for i := range routes.Data {
		names = append(names, routes.Data[i].Name)
	}
	return names, err
}

func (o *operator) nodeNames(ctx context.Context) (names []string, err error) {
	var nodes listing[admin.Node]
	err = o.call(ctx, "GET", "/nodes", nil, &nodes)
	for i := range nodes.Data {
		names = append(names, string(nodes.Data[i].Node))
	}
	return names, err
}

func (o *operator) principals(ctx context.Context) (names []string, err error) {
	var keys listing[admin.Key]
	err = o.call(ctx, "GET", keysPath, nil, &keys)
	for i := range keys.Data {
		names = append(names, keys.Data[i].Principal, "key:"+keys.Data[i].Name)
	}
	return names, err
}
