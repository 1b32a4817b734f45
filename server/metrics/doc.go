// Package metrics counts what happens in the daemon, and reads at each scrape what the groups' ranks have counted.
//
// It owns the names, labels and bounds of all metrics. It must never keep the core for longer than one group takes, and never
// add a label whose values are not bounded. It trusts nothing that comes from shared memory: sums are floating point.
package metrics
