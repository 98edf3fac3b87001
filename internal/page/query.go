package page

import (
	"net/url"
	"strconv"
	"strings"
)

// A query is what a window of the page shows, as its address has it.
type query struct {
	Search string
	Node   string // whose queue is shown
	From   int    // the first of the nodes that are shown
	Claim  string // the size of the claim that is asked about
	Class  string
	Nodes  int
}

const defaultClass = "flexlvm"

// queryOf reads an address. What makes no sense there is as if it were not there: people
// do not write it.
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

func count(text string, least int) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return least
	}
	return max(n, least)
}

// Live is the address of what changes in this window.
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
