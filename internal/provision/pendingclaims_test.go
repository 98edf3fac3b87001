package provision

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Room on a node that the class does not allow does not count.
func TestWhyGoesByTheNodesThatTheClassAllows(t *testing.T) {
	s := newStage(t)
	room := newPendingClaims(s.ledger, s.listers, nil, nil)
	class := storageClass("bound", "flexlvm")
	class.AllowedTopologies = []corev1.TopologySelectorTerm{{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelHostname, Values: []string{"host-1"}}},
	}}
	parameters, err := ParseParameters(class.Parameters)
	require.NoError(t, err)
	spec := parameters.Spec
	spec.Size = 20 * volume.GiB

	s.ledger.Report(storageOf("nameless", 40*volume.GiB))
	cause, message := room.why(class, spec, parameters)
	require.Equal(t, causeNoPool, cause)
	require.Equal(t, "no node that StorageClass \"bound\" allows (allowedTopologies) has volume group \"flexlvm\", which StorageClass \"bound\" asks for (1 node has reported); name the nodes' disks in a VolumeGroup (docs/volume-groups.md; `kubectl describe nodestorage NODE` shows its result), or run `flexlvm vg create --name flexlvm DEVICE` on a node", message)

	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	cause, message = room.why(class, spec, parameters)
	require.Equal(t, causeNoRoom, cause)
	require.Equal(t, `no node that StorageClass "bound" allows (allowedTopologies) has room for it: 21474836480 bytes (20 GiB) are asked for, and the most that any of 1 node with volume group "flexlvm" can give is `+
		ledger.AmountOf(within(10*volume.GiB))+`, on node "node-1"; it is placed as soon as there is room: delete claims that nobody needs, enlarge the volume group, or add a node (`+"`kubectl flexlvm plan --claim 20Gi --class bound` shows each node)", message)

	s.ledger.Report(storageOf("node-1", 30*volume.GiB))
	cause, message = room.why(class, spec, parameters)
	require.Equal(t, causeRoom, cause)
	require.Contains(t, message, `on node "node-1"`, "and not on the roomier one")
}

// closed closes a pool to new volumes.
func closed(why string) func(*flexlvmv1.Pool) {
	return func(p *flexlvmv1.Pool) { p.Closed = why }
}

// warnings returns the counters of warnings and of refusals.
func warnings(t *testing.T, metrics *Metrics) string {
	t.Helper()
	families, err := metrics.Registry.Gather()
	require.NoError(t, err)
	var out []string
	for _, f := range families {
		if name := strings.TrimPrefix(f.GetName(), "flexlvm_provisioner_"); name == "refusals_total" || name == "claim_warnings_total" {
			for _, m := range f.GetMetric() {
				one := name
				for _, l := range m.GetLabel() {
					one += " " + l.GetValue()
				}
				out = append(out, fmt.Sprint(one, " ", m.GetCounter().GetValue()))
			}
		}
	}
	return strings.Join(out, ", ")
}

// The event on a claim gives the cause: no room, pools that are closed, no node with the pool, or no report.
func TestWhyNothingIsOffered(t *testing.T) {
	thin := map[string]string{"layout": "thin", "thinPool": "thinpool"}
	directory := map[string]string{"layout": "directory", "directoryPool": "small", "trustPods": "true"}
	ailing := ledgertest.Report("node-1", 10*volume.GiB)
	ailing.Status.Conditions = []metav1.Condition{{Type: flexlvmv1.ConditionReady, Reason: flexlvmv1.ReasonToolsMissing, Message: "mkfs.xfs is not there: install xfsprogs"}}
	for name, c := range map[string]struct {
		parameters map[string]string
		reports    []*flexlvmv1.NodeStorage
		cause      string
		message    string
	}{
		"no report": {cause: causeNoReport, message: "no node has reported its volume groups; check `kubectl get nodestorages` and the pods of DaemonSet flexlvm-gc"},
		"tools are missing": {
			reports: []*flexlvmv1.NodeStorage{ailing}, cause: causeClosed,
			message: `of 1 node with volume group "flexlvm" none can give any, and node "node-1" takes no new volumes in volume group "flexlvm": mkfs.xfs is not there: install xfsprogs`,
		},
		"one is full, one is closed": {
			reports: []*flexlvmv1.NodeStorage{ledgertest.Report("node-1", 0), ledgertest.Report("node-2", 10*volume.GiB, closed("a device is missing"))}, cause: causeClosed,
			message: `of 2 nodes with volume group "flexlvm" none can give any, and node "node-2" takes no new volumes in volume group "flexlvm": a device is missing`,
		},
		"one has some room, one is closed": {
			reports: []*flexlvmv1.NodeStorage{ledgertest.Report("node-1", volume.GiB), ledgertest.Report("node-2", 10*volume.GiB, closed("a device is missing"))}, cause: causeNoRoom,
			message: `any of 2 nodes with volume group "flexlvm" can give is ` + ledger.AmountOf(within(volume.GiB)) + `, on node "node-1"`,
		},
		"no thin pool": {
			parameters: thin, reports: []*flexlvmv1.NodeStorage{ledgertest.Report("node-1", 10*volume.GiB)}, cause: causeNoPool,
			message: "no node has thin pool \"flexlvm/thinpool\", which StorageClass \"bound\" asks for (1 node has reported); run `flexlvm vg create --name flexlvm --thin --thin-pool thinpool DEVICE` on a node",
		},
		"no directory pool": {
			parameters: directory, reports: []*flexlvmv1.NodeStorage{ledgertest.Report("node-1", 10*volume.GiB)}, cause: causeNoPool,
			message: "no node has directory pool \"flexlvm:small\", which StorageClass \"bound\" asks for (1 node has reported); run `flexlvm directories create --group flexlvm --pool small --size SIZE` on a node",
		},
		"a directory pool is closed": {
			parameters: directory, cause: causeClosed,
			reports: []*flexlvmv1.NodeStorage{ledgertest.Report("node-1", 10*volume.GiB, closed("it is mounted without prjquota"), func(p *flexlvmv1.Pool) { p.Name = "flexlvm:small" })},
			message: `node "node-1" takes no new volumes in directory pool "flexlvm:small": it is mounted without prjquota`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			books := ledgertest.New(t, c.reports...)
			parameters, err := ParseParameters(c.parameters)
			require.NoError(t, err)
			spec := parameters.Spec
			spec.Size = 2 * volume.GiB
			cause, message := newPendingClaims(books.Ledger, Listers{}, nil, nil).why(storageClass("bound", "flexlvm"), spec, parameters)
			require.Equal(t, c.cause, cause)
			require.Contains(t, message, c.message)
		})
	}
}

// No event is sent before the nodes' reports have synced, because they would seem to be missing.
func TestClaimsAreToldNothingBeforeAllIsSeen(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	storage, err := kube.NewClient(&rest.Config{Host: silent.URL})
	require.NoError(t, err)
	client := fake.NewClientset(storageClass("fast", "flexlvm"),
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptrTo("fast"), Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			}},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}},
		})
	config := Config{Client: client, Capacities: client, Storage: storage, Namespace: "flexlvm-system", Metrics: NewMetrics()}
	w, err := newWatches(config)
	require.NoError(t, err)
	events := record.NewFakeRecorder(10)
	books, publish, grow := config.newLedger(w, events)
	pending := newPendingClaims(books, w.listers(), events, config.Metrics)
	require.NoError(t, w.addHandlers(publish, pending, grow, newScaleDownGuard(client, w.listers(), w.storage.GetStore(), publish.nodeName)))
	w.factory.Start(t.Context().Done())
	w.factory.WaitForCacheSync(t.Context().Done())
	go w.pods.informer.RunWithContext(t.Context())
	require.Eventually(t, func() bool {
		shown := 0
		for _, synced := range w.synced {
			if synced() {
				shown++
			}
		}
		return shown == len(w.synced)-3 // all except the two of the reports, and the capacities, whose informer is not started
	}, time.Minute, time.Millisecond)
	require.Empty(t, events.Events)
	pending.handlePod(w.pods.informer.GetStore().List()[0].(*corev1.Pod))
	require.Contains(t, <-events.Events, "no node has reported", "what would have been told")
}
