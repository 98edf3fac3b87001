//go:build cluster

package soak_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// quiet waits until the cluster has recovered from the last kill.
func (b *bed) quiet(ctx context.Context, t *testing.T) {
	t.Helper()
	b.kubectl(ctx, t, nil, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=3m")
	b.rolledOut(ctx, t)
}

// settle waits until the cluster has no work left.
func (b *bed) settle(ctx context.Context, t *testing.T, h *history) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	live := len(h.living())
	for {
		open, err := b.open(ctx, live)
		if err == nil && open == "" {
			return
		}
		if ctx.Err() != nil {
			require.NoError(t, err)
			h.amiss("it does not come to rest: %s", open)
			return
		}
		pause(ctx, time.Second)
	}
}

// open returns what the cluster still has to do.
func (b *bed) open(ctx context.Context, live int) (string, error) {
	pods, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	claims, err := b.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	pvs, err := b.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	switch {
	case len(pods.Items) > 0:
		return fmt.Sprintf("%d pods, one is %s", len(pods.Items), pods.Items[0].Name), nil
	case len(claims.Items) != live:
		return fmt.Sprintf("%d claims, and %d that were not deleted", len(claims.Items), live), nil
	case len(pvs.Items) != live:
		return fmt.Sprintf("%d PersistentVolumes, and %d claims that were not deleted", len(pvs.Items), live), nil
	}
	for _, c := range claims.Items { // kubelet reports a growth after the pod has seen it
		if has, asks := c.Status.Capacity.Storage(), c.Spec.Resources.Requests.Storage(); has.Cmp(*asks) != 0 {
			return fmt.Sprintf("claim %s has %s, and asks for %s", c.Name, has, asks), nil
		}
	}
	for _, name := range b.nodes {
		list, err := b.volumes(ctx, name)
		if err != nil {
			return "", err
		}
		var storage flexlvmv1.NodeStorage
		raw, err := b.nodeStorage(ctx, name)
		if err != nil {
			return "", err
		}
		if err := json.Unmarshal(raw, &storage); err != nil {
			return "", err
		}
		if text := unsettled(name, list, storage); text != "" {
			return text, nil
		}
	}
	return "", nil
}

// unsettled returns what a node still has to do, or reports incorrectly.
func unsettled(name string, list []inventory.Volume, storage flexlvmv1.NodeStorage) string {
	counts := map[string]int32{}
	for _, v := range list {
		counts[string(v.State)]++
		if v.State == volume.Doomed || v.State == volume.Creating || v.Open {
			return fmt.Sprintf("%s: volume %s is %s, open: %t", name, v.Name, v.State, v.Open)
		}
	}
	for _, v := range storage.Status.Released {
		if v.Kept == flexlvmv1.KeptTooYoung { // it may be evicted as soon as it is old enough
			return fmt.Sprintf("%s keeps volume %s, which is too young to go", name, v.Name)
		}
	}
	if len(storage.Status.Pools) != 1 {
		return fmt.Sprintf("%s reports %d pools", name, len(storage.Status.Pools))
	}
	pool := storage.Status.Pools[0]
	for state, n := range pool.VolumesByState {
		if counts[state] != n {
			return fmt.Sprintf("%s has %d volumes that are %s, and reports %d", name, counts[state], state, n)
		}
	}
	evictable := slices.ContainsFunc(storage.Status.Released, func(v flexlvmv1.ReleasedVolume) bool { return v.EvictionOrder > 0 })
	switch {
	case evictable && pool.Free.Value() < pool.Size.Value()/10: // an eviction for headroom waits up to a minute for pods that start
		return name + " is about to evict a volume for headroom"
	case storage.Status.OrphanCount != 0:
		return fmt.Sprintf("%s reports %d orphans: %+v", name, storage.Status.OrphanCount, storage.Status.Orphans)
	case int(storage.Status.Volumes) != len(list):
		return fmt.Sprintf("%s has %d volumes, and reports %d", name, len(list), storage.Status.Volumes)
	case pool.ForeignVolumes != 1:
		return fmt.Sprintf("%s reports %d volumes that are not ours, and has 1", name, pool.ForeignVolumes)
	case !pool.Promised.IsZero():
		return fmt.Sprintf("%s reports that %s are promised", name, pool.Promised.String())
	}
	return ""
}

// volumes returns the volumes that the operator's tool lists on a node.
func (b *bed) volumes(ctx context.Context, name string) ([]inventory.Volume, error) {
	out, err := b.Node(ctx, name, driver, "volumes", "list", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list []inventory.Volume
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read the list of volumes of %s: %w", name, err)
	}
	return list, nil
}

// compare checks LVM's volumes against the API.
func (b *bed) compare(ctx context.Context, t *testing.T, h *history) {
	t.Helper()
	there := map[string]bool{}
	explained := 0
	for _, name := range b.nodes {
		list, err := b.volumes(ctx, name)
		require.NoError(t, err)
		pvs, err := b.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: pv.LabelNode + "=" + pv.NodeLabelValue(name)})
		require.NoError(t, err)
		explained += len(pvs.Items)
		names := []string{stranger}
		for _, v := range list {
			names = append(names, string(v.Name))
			there[string(v.Name)] = true
		}
		slices.Sort(names)
		inLVM := strings.Fields(b.onNode(ctx, t, name, "lvs --noheadings -o lv_name "+group))
		slices.Sort(inLVM)
		if !slices.Equal(names, inLVM) {
			h.amiss("%s: LVM has %v, and `flexlvm volumes list` and the stranger are %v", name, inLVM, names)
		}
		h.explain(name, list, pvs.Items)
		if sum := b.onNode(ctx, t, name, "sha256sum /dev/"+group+"/"+stranger); sum != b.strangers[name] {
			h.amiss("%s: the stranger's data has changed", name)
		}
	}
	if live := len(h.living()); explained != live {
		h.amiss("%d claims live, and %d PersistentVolumes carry the label of a node", live, explained)
	}
	for _, c := range h.living() {
		now, err := b.claim(ctx, c.name)
		require.NoError(t, err)
		if got := now.Status.Capacity.Storage().Value(); now.Status.Phase != corev1.ClaimBound || got != int64(c.now) {
			h.amiss("claim %s is %s and has %d bytes, and not %d", c.name, now.Status.Phase, got, c.now)
		}
	}
	h.account(there)
}

// explain checks a node's volumes against its PersistentVolumes, in both directions.
func (h *history) explain(node string, list []inventory.Volume, pvs []corev1.PersistentVolume) {
	h.mu.Lock()
	defer h.mu.Unlock()
	want := map[string]bool{}
	for _, pv := range pvs {
		want[pv.Name] = true
		if pv.Status.Phase != corev1.VolumeBound {
			h.amissLocked("%s: PersistentVolume %s is %s", node, pv.Name, pv.Status.Phase)
		}
	}
	for _, v := range list {
		name := string(v.Name)
		c := h.byVolume[name]
		switch {
		case c == nil:
			h.amissLocked("%s: volume %s was nobody's", node, name)
		case c.node != node:
			h.amissLocked("%s: volume %s of claim %s should be on %s", node, name, c.name, c.node)
		case want[name] && (v.State != volume.Ready || v.Size != c.now || !c.alive()):
			h.amissLocked("%s: volume %s of claim %s is %s and has %d bytes, and not %d; deleted: %t", node, name, c.name, v.State, v.Size, c.now, !c.alive())
		case !want[name] && (v.State != volume.Unreferenced || c.alive()):
			h.amissLocked("%s: volume %s of claim %s is %s, and no PersistentVolume names it; deleted: %t", node, name, c.name, v.State, !c.alive())
		case v.Problem != "":
			h.amissLocked("%s: volume %s: %s", node, name, v.Problem)
		}
		if !want[name] {
			h.counts["waiting"]++
		}
		delete(want, name)
	}
	for name := range want {
		h.amissLocked("%s: PersistentVolume %s has no volume", node, name)
	}
}

// account checks all volumes that ever existed: a volume that is gone must have been deleted, and one
// that an event reports as evicted must be gone.
func (h *history) account(there map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.claims {
		if c.digest == "" || there[c.volume] {
			continue
		}
		h.counts["gone"]++
		if c.alive() {
			h.amissLocked("the volume of claim %s is gone, and the claim was not deleted", c.name)
		}
	}
	for name := range h.evicted {
		if there[name] {
			h.amissLocked("volume %s is there, and an event says that it was evicted", name)
		}
	}
	if h.evictionsLocked() == 0 {
		h.amissLocked("nothing was evicted: this has tested nothing")
	}
	for _, victim := range victims {
		if h.counts["killed: "+victim] == 0 {
			h.amissLocked("no %s was killed: this has tested too little", victim)
		}
	}
}
