package metrics

import (
	"regexp"
	"strings"
)

var (
	// Names of groups that are split from a group: "of/birth.split.color", where birth differs in each run (client/comm/split.cc).
	splitName = regexp.MustCompile(`^(.+)/[0-9a-f]+\.([0-9a-f]+\.[0-9]+)$`)
	// Names that `railhead run` and other commands make up: they end in 16 random digits.
	randomName = regexp.MustCompile(`^(.+)-[0-9a-f]{16}$`)
	// Names after a launcher's job, whose numbers differ in each run (client/base/identity.cc).
	jobName = regexp.MustCompile(`^(torchrun|openmpi|pmi|slurm)/`)
)

// groupLabel is the value of the label `group`: the group's name, less what differs in each run. Otherwise each run would leave series
// behind in a database. Groups of several runs may have one label.
func groupLabel(name string) string {
	name = strings.ToValidUTF8(name, "?") // the memory of a group taken over may hold anything, and another label panics
	if m := splitName.FindStringSubmatch(name); m != nil {
		return groupLabel(m[1]) + "/" + m[2]
	}
	if m := jobName.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	if m := randomName.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return name
}
