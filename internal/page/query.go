package page

import (
	"net/url"
	"strconv"
	"strings"
)

// A query is what a window of the page shows, parsed from its URL.
type query struct {
	Search string
	Node   string // the node whose queue is shown
	From   int    // index of the first node shown
	Claim  string // size of the hypothetical claim
	Class  string
	Nodes  int
}

const defaultClass = "flexlvm"

// queryOf parses a URL. Invalid values are ignored, because people do not write these URLs by hand.
func queryOf(v url.Values) query {
	q := query{
		Search: strings.TrimSpace(v.Get("q")), Node: v.Get("node"), From: count(v.Get("from"), 0),
		Claim: strings.TrimSpace(v.Get("claim")), Class: strings.TrimSpace(v.Get("class")), Nodes: count(v.Get("nodes"), 1),
	}
	if q.Class == "" {
		q.Class = defaultClass
	}
	return q
}

func count(text string, minimum int) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return minimum
	}
	return max(n, minimum)
}

// Live returns the URL of the events for this window.
func (q query) Live() string {
	v := url.Values{}
	if q.Node != "" {
		v.Set("node", q.Node)
	}
	if q.From > 0 {
		v.Set("from", strconv.Itoa(q.From))
	}
	return "events?" + v.Encode()
}
