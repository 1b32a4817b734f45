package moe

import (
	"bufio"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

// traffic is the bytes that a rank has written to other ranks.
type traffic struct {
	Payload float64 `json:"payload"` // rows with their scales, partial sums
	Headers float64 `json:"headers"` // of tokens
	Flags   float64 `json:"flags"`   // and counts
}

func (t traffic) minus(other traffic) traffic {
	return traffic{t.Payload - other.Payload, t.Headers - other.Headers, t.Flags - other.Flags}
}

func (t traffic) over(n float64) traffic {
	return traffic{t.Payload / n, t.Headers / n, t.Flags / n}
}

// metricsDeadline limits a request to /metrics; one takes milliseconds.
const metricsDeadline = 10 * time.Second

var (
	bytesLine = regexp.MustCompile(`^railhead_ep_bytes_total\{.*kind="(payload|header)".*rank="([0-9]+)"\} (\S+)$`)
	flagsLine = regexp.MustCompile(`^railhead_ep_flag_bytes_total\{.*rank="([0-9]+)"\} (\S+)$`)
)

// readTraffic reads the counters of all ranks from the daemon's /metrics. The daemon has one group only, so it need not be selected.
func readTraffic(admin string, ranks int) ([]traffic, error) {
	c := http.Client{Timeout: metricsDeadline}
	answer, err := c.Get("http://" + admin + "/metrics")
	if err != nil {
		return nil, fmt.Errorf("read the daemon's counters: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	all := make([]traffic, ranks)
	add := func(rank, value string, to func(*traffic) *float64) {
		r, rankErr := strconv.Atoi(rank)
		v, valueErr := strconv.ParseFloat(value, 64)
		if rankErr == nil && valueErr == nil && r < ranks {
			*to(&all[r]) += v
		}
	}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if m := flagsLine.FindStringSubmatch(lines.Text()); m != nil {
			add(m[1], m[2], func(t *traffic) *float64 { return &t.Flags })
		}
		if m := bytesLine.FindStringSubmatch(lines.Text()); m != nil {
			add(m[2], m[3], func(t *traffic) *float64 {
				if m[1] == "payload" {
					return &t.Payload
				}
				return &t.Headers
			})
		}
	}
	return all, lines.Err()
}
