package admin

import (
	"time"

	"github.com/valyala/fasthttp"

	"railhead/server/flight"
	"railhead/server/group"
	"railhead/server/membership"
)

// Status is the answer of /v1/groups.
type Status struct {
	Daemon DaemonInfo             `json:"daemon"`
	Health flight.Health          `json:"health"` // the worst of the groups'
	Groups []membership.GroupInfo `json:"groups"`
	Ended  []membership.GroupInfo `json:"ended"` // the latest last
}

// DaemonInfo is the daemon's part of Status.
type DaemonInfo struct {
	Version   string       `json:"version"`
	PID       int          `json:"pid"`
	Started   time.Time    `json:"started"`
	Socket    string       `json:"socket"`
	Admin     string       `json:"admin,omitempty"`
	Draining  bool         `json:"draining"`
	Sessions  int          `json:"sessions"`
	Unwatched int          `json:"unwatched_sessions,omitempty"` // whose process is not watched: it is in another pid namespace
	Tuning    group.Tuning `json:"tuning"`
}

func (a *Admin) groups(ctx *fasthttp.RequestCtx) {
	answer, err := group.AskFor(a.config.Core, func(g *group.Groups) Status {
		groups, ended := g.Snapshot()
		for i := range groups {
			groups[i].MoE = g.EP(groups[i].ID).Summary()
		}
		return Status{Daemon: a.config.Daemon(), Health: worst(groups), Groups: notNull(groups), Ended: notNull(ended)}
	})
	if err != nil {
		coreStuck(ctx)
		return
	}
	writeJSON(ctx, answer)
}

func coreStuck(ctx *fasthttp.RequestCtx) {
	adminError(ctx, fasthttp.StatusServiceUnavailable, "core_stuck", "the daemon's core does not answer", "see /livez and the log")
}

// notNull makes an empty list of none, for JSON.
func notNull(groups []membership.GroupInfo) []membership.GroupInfo {
	if groups == nil {
		return []membership.GroupInfo{}
	}
	return groups
}

func (a *Admin) groupInfos() ([]membership.GroupInfo, error) {
	return group.AskFor(a.config.Core, func(g *group.Groups) []membership.GroupInfo { groups, _ := g.Snapshot(); return groups })
}
