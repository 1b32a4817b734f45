package tuner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxForcingBytes bounds a forcing text.
const maxForcingBytes = 1024

// Algorithms lists the algorithms of each collective. Collectives have their names of the command line.
type Algorithms map[string][]string

// all names every algorithm once, in order.
func (a Algorithms) all() []string {
	var names []string
	for _, of := range a {
		names = append(names, of...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Forcing says which algorithms a choice may take. The zero value forces nothing and knows no collective.
//
//	text   = "" | "auto" | clause { ";" clause }
//	clause = [ collective ":" ] [ "^" ] algorithm { "," algorithm }
//
// A clause allows its algorithms only, or with ^ all except these. A clause without a collective applies to every collective
// that has at least one of the algorithms and no clause of its own. There is at most one clause a collective, and at most
// one without a collective.
type Forcing struct {
	clauses []clause
	known   Algorithms
}

type clause struct {
	collective string // empty: the general one
	exclude    bool
	algorithms []string
}

// ParseForcing parses a text. An unknown name is an error, and so is a collective for which no algorithm would be left.
func ParseForcing(text string, known Algorithms) (Forcing, error) {
	if len(text) > maxForcingBytes {
		return Forcing{}, fmt.Errorf("forced algorithms: %d bytes; at most %d", len(text), maxForcingBytes)
	}
	f := Forcing{known: known}
	if t := strings.TrimSpace(text); t == "" || t == "auto" {
		return f, nil
	}
	for part := range strings.SplitSeq(text, ";") {
		c, err := parseClause(part, known)
		if err != nil {
			return Forcing{}, fmt.Errorf("forced algorithms %q: %w", text, err)
		}
		if _, twice := f.clause(c.collective); twice {
			return Forcing{}, fmt.Errorf("forced algorithms %q: two clauses %s; put their algorithms into one", text, c.scope())
		}
		f.clauses = append(f.clauses, c)
	}
	slices.SortFunc(f.clauses, clause.compare)
	for _, collective := range sortedKeys(known) {
		if len(known[collective]) > 0 && len(f.Allowed(collective)) == 0 {
			return Forcing{}, fmt.Errorf("forced algorithms %q: none is left for %s; its algorithms are %s", text, collective, strings.Join(known[collective], ", "))
		}
	}
	return f, nil
}

func parseClause(text string, known Algorithms) (clause, error) {
	var c clause
	names := known.all()
	if collective, rest, scoped := strings.Cut(text, ":"); scoped {
		c.collective, text = strings.TrimSpace(collective), rest
		of, ok := known[c.collective]
		if !ok {
			return c, fmt.Errorf("collective %.40q is not known; there are %s", c.collective, list(known))
		}
		names = of
	}
	text = strings.TrimSpace(text)
	text, c.exclude = strings.CutPrefix(text, "^")
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		switch {
		case strings.HasPrefix(name, "^"):
			return c, fmt.Errorf("%.40q: put one ^ before the first algorithm; it applies to the whole list", name)
		case !slices.Contains(names, name):
			return c, fmt.Errorf("algorithm %.40q is not known %s; there are %s", name, c.scope(), cmp.Or(strings.Join(names, ", "), "none"))
		case slices.Contains(c.algorithms, name):
			return c, fmt.Errorf("algorithm %s is named twice %s", name, c.scope())
		}
		c.algorithms = append(c.algorithms, name)
	}
	slices.Sort(c.algorithms)
	return c, nil
}

// compare puts the general clause last.
func (c clause) compare(other clause) int {
	if (c.collective == "") != (other.collective == "") {
		return strings.Compare(other.collective, c.collective)
	}
	return strings.Compare(c.collective, other.collective)
}

// scope says in messages what a clause applies to.
func (c clause) scope() string {
	if c.collective == "" {
		return "for all collectives"
	}
	return "for " + c.collective
}

func (f Forcing) clause(collective string) (clause, bool) {
	i := slices.IndexFunc(f.clauses, func(c clause) bool { return c.collective == collective })
	if i < 0 {
		return clause{}, false
	}
	return f.clauses[i], true
}

// Allowed lists the algorithms that may be chosen for a collective, in the order of Algorithms: all where nothing is forced,
// none for an unknown collective.
func (f Forcing) Allowed(collective string) []string {
	all := f.known[collective]
	c, own := f.clause(collective)
	if !own {
		var general bool
		c, general = f.clause("")
		applies := general && slices.ContainsFunc(all, func(a string) bool { return slices.Contains(c.algorithms, a) })
		if !applies {
			return slices.Clone(all)
		}
	}
	var allowed []string
	for _, a := range all {
		if slices.Contains(c.algorithms, a) != c.exclude {
			allowed = append(allowed, a)
		}
	}
	return allowed
}

// String is the text in canonical form: two texts with the same meaning give the same string. ParseForcing reads it back.
func (f Forcing) String() string {
	if len(f.clauses) == 0 {
		return "auto"
	}
	var parts []string
	for _, c := range f.clauses {
		text := strings.Join(c.algorithms, ",")
		if c.exclude {
			text = "^" + text
		}
		if c.collective != "" {
			text = c.collective + ":" + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ";")
}
