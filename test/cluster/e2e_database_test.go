//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// startEtcd starts etcd on a volume, with addresses instead of names: etcd looks up any name of its own
// address in DNS, which these clusters do not have, for half a minute.
const startEtcd = `/program --data-dir=/data/etcd --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 --quota-backend-bytes=33554432 --log-level=warn & `

// writing puts keys in sequence, each its own value, and records each acknowledged one outside of the
// volume.
var writing = `n=1; while :; do key=$(printf %06d $n | base64)
	if wget -q -O /dev/null --post-data "{\"key\":\"$key\",\"value\":\"$key\"}" http://127.0.0.1:2379/v3/kv/put 2>/dev/null
	then echo $n >>/tmp/acknowledged; n=$((n+1)); fi; sleep ` + unhurried("1", "0.1") + `; done & `

// everyKey reads all keys as soon as etcd answers.
const everyKey = `for i in $(seq 600); do wget -q -O - --post-data '{"key":"AA==","range_end":"AA=="}' http://127.0.0.1:2379/v3/kv/range && exit 0; sleep 0.5; done; exit 1`

var loadEtcdOnce sync.Once

// loadEtcd loads the etcd image onto the nodes.
func (n *tenant) loadEtcd() {
	n.t.Helper()
	loadEtcdOnce.Do(func() {
		image, err := cluster.BuildEtcdImage(n.ctx, os.Stderr)
		require.NoError(n.t, err)
		require.NoError(n.t, shared.LoadImage(n.ctx, image))
	})
}

// database returns a pod that runs etcd on the claim, and beside it a line of shell such as writing.
func database(p pod, beside string) string {
	p.image, p.command = cluster.EtcdImage, startEtcd+beside+"true"
	return p.manifest()
}

// acknowledged returns how many keys a database that is writing has acknowledged.
func (n *tenant) acknowledged(pod string) int64 {
	n.t.Helper()
	return number(n.t, n.exec(pod, "cat /tmp/acknowledged 2>/dev/null | wc -l"))
}

func (n *tenant) untilWritten(pod string) {
	n.t.Helper()
	n.ifFailed(func(ctx context.Context) (string, error) {
		return shared.Kubectl(ctx, "-n", n.namespace, "logs", pod, "--tail=20")
	})
	await.Until(n.t, patience, func() string {
		written := n.acknowledged(pod)
		return await.Missing(written > 5, "next to nothing is written: %d keys", written)
	})
}

// keys checks that a database's keys are the first that were written, without gaps and with correct
// values, and returns their number.
func (n *tenant) keys(pod string) int64 {
	n.t.Helper()
	out, err := n.tryExec(pod, everyKey)
	if err != nil {
		require.NoError(n.t, err, "%s\n%s", out, n.kubectl("logs", pod, "--tail=50"))
	}
	var all struct{ Kvs []struct{ Key, Value []byte } }
	require.NoError(n.t, json.Unmarshal([]byte(out), &all), out)
	for i, one := range all.Kvs {
		key := fmt.Sprintf("%06d", i+1)
		require.Equal(n.t, key, string(one.Key))
		require.Equal(n.t, key, string(one.Value))
	}
	return int64(len(all.Kvs))
}

// requireKeys checks that a restored database has all keys that were acknowledged before its snapshot,
// and none that were written after it, and returns their number.
func (n *tenant) requireKeys(pod string, before, after int64) int64 {
	n.t.Helper()
	held := n.keys(pod)
	n.t.Logf("%s: of %d to %d keys that were acknowledged, %d were restored", pod, before, after, held)
	require.GreaterOrEqual(n.t, held, before, "what was acknowledged before")
	require.LessOrEqual(n.t, held, after+1) // one more may have been in flight
	return held
}
