// Package deploy shows that what lies in deploy works: the container stack on a real Docker engine, what Prometheus and
// Grafana are given, and the units for systemd.
//
// What may enter is a test of those files, with the programs that read them. What a proxy or an operator does to running
// processes stands in package e2e.
package deploy
