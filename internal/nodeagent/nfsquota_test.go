package nodeagent_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/nfsquota"
)

// fakeKeeper returns a given report.
type fakeKeeper struct {
	report atomic.Pointer[nfsquota.Report]
	looks  atomic.Int64
}

func (k *fakeKeeper) Reconcile(context.Context) []nfsquota.Report {
	k.looks.Add(1)
	return []nfsquota.Report{*k.report.Load()}
}

func (k *fakeKeeper) Await(ctx context.Context, _ time.Duration) {
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (k *fakeKeeper) says(r nfsquota.Report, err error) {
	r.Export, r.Err = "/srv/flexlvm", err
	k.report.Store(&r)
}

func TestSizesOfAnExport(t *testing.T) {
	r := newRig(t)
	k := &fakeKeeper{}
	k.says(nfsquota.Report{Asked: 2}, errors.New("mount it with the option prjquota"))
	r.config.Sizes = k
	r.start()
	told := func(text string) {
		t.Helper()
		r.eventually(func() bool { return strings.Contains(strings.Join(r.api.told("NFSSizeNotEnforced"), "\n"), text) }, "nobody says %q", text)
	}
	told("NFS export /srv/flexlvm: the size of 2 volumes is not enforced: mount it with the option prjquota")
	require.EqualValues(t, 2, r.metric("flexlvm_nfs_sizes", "unenforced"))
	k.says(nfsquota.Report{Asked: 3, Held: 1, Problems: []string{"this one", "that one"}}, nil)
	told("the size of 2 volumes is not enforced: this one, and so on")
	k.says(nfsquota.Report{}, errors.New("its marks are no directory"))
	told("NFS export /srv/flexlvm: sizes are not enforced: its marks are no directory")
	k.says(nfsquota.Report{Asked: 3, Held: 3}, nil)
	r.eventually(func() bool { return r.metric("flexlvm_nfs_sizes", "enforced") == 3 }, "they are not enforced")
	require.Zero(t, r.metric("flexlvm_nfs_sizes", "unenforced"))
	k.says(nfsquota.Report{Asked: 2}, errors.New("mount it with the option prjquota"))
	r.eventually(func() bool { return r.metric("flexlvm_nfs_sizes", "unenforced") == 2 }, "they are enforced")
}

// If no sizes are left to enforce, the log does not claim that all are enforced again.
func TestSizesOfAnEmptyExport(t *testing.T) {
	var out logged
	r := newRig(t)
	r.log = funcr.New(func(_, args string) { out.add(args) }, funcr.Options{})
	k := &fakeKeeper{}
	r.config.Sizes = k
	k.says(nfsquota.Report{Asked: 2}, errors.New("no quotas"))
	r.start()
	says := func(text string) {
		t.Helper()
		r.eventually(func() bool { return strings.Contains(out.all(), text) }, "nobody says %q", text)
	}
	const again = "The sizes of all volumes in an NFS export are enforced again"
	says("The sizes of volumes in an NFS export are not enforced")
	k.says(nfsquota.Report{}, nil)
	r.eventually(func() bool { return r.metric("flexlvm_nfs_sizes", "unenforced") == 0 }, "nobody looks")
	until := k.looks.Load() + 3
	r.eventually(func() bool { return k.looks.Load() >= until }, "nobody looks")
	require.NotContains(t, out.all(), again)
	k.says(nfsquota.Report{Asked: 1, Held: 1}, nil)
	says(again)
}

// logged collects the log of a daemon.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *logged) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func TestDryRunEnforcesNoSizes(t *testing.T) {
	r := newRig(t)
	k := &fakeKeeper{}
	k.says(nfsquota.Report{}, nil)
	r.config.Sizes, r.config.DryRun = k, true
	r.start()
	r.rounds(3)
	require.Zero(t, k.looks.Load())
}

// A keeper that hangs on a file system does not keep the daemon from stopping.
func TestSizesThatHang(t *testing.T) {
	r := newRig(t)
	k := hangingKeeper{make(chan struct{})}
	r.config.Sizes = k
	stop := r.start()
	<-k.looks
	stop()
}

// hangingKeeper hangs in Reconcile after it has sent to looks.
type hangingKeeper struct{ looks chan struct{} }

func (k hangingKeeper) Reconcile(context.Context) []nfsquota.Report {
	k.looks <- struct{}{}
	select {}
}

func (hangingKeeper) Await(context.Context, time.Duration) {}
