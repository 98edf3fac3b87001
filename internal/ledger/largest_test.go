package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// scanned determines the largest offer by asking for every node's offer.
func scanned(l *ledger.Ledger, class volume.Spec, allows func(node string) bool) (out ledger.Largest) {
	for _, node := range l.Nodes() {
		offer, has := l.Offer(node, class)
		if !has || allows != nil && !allows(node) {
			continue
		}
		if out.Nodes++; out.Node == "" || offer.MaxVolumeSize > out.MaxVolumeSize || offer.MaxVolumeSize == out.MaxVolumeSize && offer.Closed != "" && out.Closed == "" {
			out.Node, out.MaxVolumeSize, out.Closed = node, offer.MaxVolumeSize, offer.Closed
		}
	}
	if out.Nodes == 0 {
		out.Reported = len(l.Nodes())
	}
	return out
}

func classes() []volume.Spec {
	return []volume.Spec{
		{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim},
		{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Dataset},
		{Group: "other", Layout: volume.Linear, Kind: volume.Claim},
	}
}

// After any change, the cached largest offer equals the one that a scan finds.
func TestLargestFollowsEveryChange(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	b := ledgertest.New(t)
	node := func() string { return fmt.Sprint("node-", random.IntN(6)) }
	deleted := map[string]int{}
	report := func(node string, change ...func(*flexlvmv1.Pool)) *flexlvmv1.NodeStorage {
		out := ledgertest.Report(node, ledgertest.OneGiB*volume.Bytes(random.IntN(20)), change...)
		out.UID = types.UID(fmt.Sprint(node, "/", deleted[node]))
		return out
	}
	for i := range 3000 {
		want := ledgertest.Want(fmt.Sprint("pvc-", random.IntN(30)), volume.GiB*volume.Bytes(1+random.IntN(4)))
		switch random.IntN(7) {
		case 0:
			b.Report(report(node(), func(p *flexlvmv1.Pool) {
				p.Closed = []string{"", "", "a device is missing"}[random.IntN(3)]
			}))
		case 1:
			one := node()
			b.Forget(report(one))
			deleted[one]++
		case 2:
			b.Written(ledgertest.PersistentVolume(node(), want))
		case 3:
			b.Gone(want.PV)
			if one, at, ask := b.Unconfirmed(node()); ask && random.IntN(2) == 0 {
				b.Confirm(report(one), at)
			}
		case 4, 5:
			_, _ = b.Reserve(node(), []ledger.Want{want, ledgertest.Want(fmt.Sprint("also-", i%5), volume.GiB)})
		case 6:
			b.Now = b.Now.Add(time.Minute)
			for j := range 6 { // as the publisher does when a reservation expires
				b.ExpireReservations(fmt.Sprint("node-", j))
			}
		}
		for _, class := range classes() {
			for _, allows := range []func(string) bool{nil, func(node string) bool { return node == "node-1" || node == "node-4" }, func(string) bool { return false }} {
				require.Equal(t, scanned(b.Ledger, class, allows), b.Largest(class, allows), "after %d changes", i)
			}
		}
	}
}

// If no node has any room, the first closed node is returned, with the reason.
func TestLargestSaysWhyNodesTakeNone(t *testing.T) {
	class := classes()[0]
	missing := func(p *flexlvmv1.Pool) { p.Closed = "a device is missing" }
	b := ledgertest.New(t)
	require.Equal(t, ledger.Largest{}, b.Largest(class, nil))
	b.Report(ledgertest.Report("node-1", 0))
	require.Equal(t, ledger.Largest{Node: "node-1", Nodes: 1}, b.Largest(class, nil), "it is full")
	require.Equal(t, ledger.Largest{Reported: 1}, b.Largest(classes()[2], nil))
	b.Report(ledgertest.Report("node-3", ledgertest.OneGiB, missing))
	b.Report(ledgertest.Report("node-2", ledgertest.OneGiB))
	b.Written(ledgertest.PersistentVolume("node-2", ledgertest.Want("a", volume.GiB), option(volume.OptionLayout, "spiral")))
	got := b.Largest(class, nil)
	require.Equal(t, "node-2", got.Node)
	require.Contains(t, got.Closed, `is promised nothing more, as not even the pool of PersistentVolume "a" can be read`)
	closed := `takes no new volumes in volume group "flexlvm": a device is missing`
	not := func(node string) bool { return node != "node-2" }
	require.Equal(t, ledger.Largest{Node: "node-3", Nodes: 2, Closed: closed}, b.Largest(class, not))
	b.Report(ledgertest.Report("node-1", ledgertest.OneGiB))
	require.Equal(t, ledger.Largest{Node: "node-1", Nodes: 2, MaxVolumeSize: volume.GiB}, b.Largest(class, not))
}

// crowd returns a ledger of many nodes with many volumes.
func crowd(nodes, volumes int) *ledger.Ledger {
	l := ledger.New(time.Now, func(string) {})
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		l.Report(ledgertest.Report(name, 1000*ledgertest.OneGiB))
		for j := range volumes {
			l.Written(ledgertest.PersistentVolume(name, ledgertest.Want(fmt.Sprintf("pvc-%d-%d", i, j), volume.GiB)))
		}
	}
	return l
}

// BenchmarkLargest asks for the largest offer after each change of one node. Only its ratio to BenchmarkScan matters.
func BenchmarkLargest(b *testing.B) {
	l, class := crowd(1000, 100), classes()[0]
	l.Largest(class, nil)
	for i := 0; b.Loop(); i++ {
		l.Report(ledgertest.Report(fmt.Sprintf("node-%05d", i%1000), volume.Bytes(900+i%50)*ledgertest.OneGiB))
		l.Largest(class, nil)
	}
}

// BenchmarkScan asks every node instead.
func BenchmarkScan(b *testing.B) {
	l, class := crowd(1000, 100), classes()[0]
	for i := 0; b.Loop(); i++ {
		l.Report(ledgertest.Report(fmt.Sprintf("node-%05d", i%1000), volume.Bytes(900+i%50)*ledgertest.OneGiB))
		scanned(l, class, nil)
	}
}
