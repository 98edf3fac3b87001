package dataset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// statusOf sums up the volumes. A Running VolumeManager stays Running while each of its volumes can be used
// somewhere: a replica that is evicted and replaced is no news to scripts that wait for a state.
func statusOf(owner *flexlvmv1.VolumeManager, volumes []Outcome, released bool) flexlvmv1.VolumeManagerStatus {
	out := flexlvmv1.VolumeManagerStatus{ObservedGeneration: owner.Generation, Conditions: slices.Clone(owner.Status.Conditions)}
	// Volumes that are no longer in the spec do not count, but those that still need a person are listed.
	former := slices.DeleteFunc(slices.Clone(volumes), func(o Outcome) bool { return !o.Former || !o.Failed })
	volumes = slices.DeleteFunc(slices.Clone(volumes), func(o Outcome) bool { return o.Former })
	count := tally{volumes: len(volumes), all: len(volumes) > 0, loaded: len(volumes) > 0}
	for _, v := range volumes {
		out.Volumes = append(out.Volumes, v.Status)
		count.add(v)
	}
	for _, v := range former {
		out.Volumes = append(out.Volumes, v.Status)
	}
	was := owner.Status.State == flexlvmv1.StateRunning && owner.Status.ObservedGeneration == owner.Generation
	switch {
	case owner.Spec.State == flexlvmv1.StateCompleted && released:
		out.State, out.Message = flexlvmv1.StateCompleted, flexlvmv1.MessageCompleted
	case owner.Spec.State == flexlvmv1.StateCompleted && !count.failed:
		out.State, out.Message = cmp.Or(owner.Status.State, flexlvmv1.StatePending), cmp.Or(owner.Status.Message, flexlvmv1.MessagePending)
	case owner.Spec.State != flexlvmv1.StateCompleted && (count.all || was && count.usable == count.volumes):
		out.State, out.Message = flexlvmv1.StateRunning, flexlvmv1.MessageRunning
	case count.failed:
		out.State, out.Message = flexlvmv1.StateFailed, flexlvmv1.MessageFailed
	default:
		out.State, out.Message = flexlvmv1.StatePending, flexlvmv1.MessagePending
	}
	out.Summary = summarize(volumes)
	setCondition(&out, flexlvmv1.ConditionReady, count.usable == count.volumes && !released, "Usable", "every volume can be used", "NotUsable", out.Summary.Message, owner.Generation)
	setCondition(&out, flexlvmv1.ConditionLoaded, count.loaded && !released, "Complete", "every replica is complete", "NotComplete", out.Summary.Message, owner.Generation)
	setRefreshedCondition(&out, volumes, owner.Generation)
	setAdviceCondition(&out, volumes, owner.Generation)
	setTruncatedCondition(&out, owner.Generation)
	return out
}

// setTruncatedCondition sets the condition that says which volumes have more replicas than the status lists by name.
func setTruncatedCondition(out *flexlvmv1.VolumeManagerStatus, generation int64) {
	var ids []string
	for _, v := range out.Volumes {
		if len(v.States) > 0 {
			ids = append(ids, v.ID)
		}
	}
	if len(ids) == 0 && meta.FindStatusCondition(out.Conditions, flexlvmv1.ConditionTruncated) == nil {
		return
	}
	setCondition(out, flexlvmv1.ConditionTruncated, len(ids) > 0, "ManyReplicas",
		fmt.Sprintf("%d of the replicas of %s are listed by name; states counts all of them", maxReplicas, strings.Join(ids, ", ")), "AllListed", "", generation)
}

// setRefreshedCondition sets the condition that says whether replicas hold what their sources have, as far as that was
// checked. There is none if it never was.
func setRefreshedCondition(out *flexlvmv1.VolumeManagerStatus, volumes []Outcome, generation int64) {
	var stale []string
	asked := false
	for _, v := range volumes {
		asked = asked || v.Refreshes
		for _, why := range v.Stale {
			stale = append(stale, v.Status.ID+": "+why)
		}
	}
	if !asked && meta.FindStatusCondition(out.Conditions, flexlvmv1.ConditionRefreshed) == nil {
		return
	}
	setCondition(out, flexlvmv1.ConditionRefreshed, len(stale) == 0, "Refreshed", "no refresh has failed", "RefreshFailed", conditionMessage(stale), generation)
}

// conditionMessage joins lines into the message of a condition.
func conditionMessage(lines []string) string {
	return volume.Clip(strings.Join(lines, "\n"), maxAdvice, " …")
}

// maxAdvice bounds the message of a condition, in bytes.
const maxAdvice = 4096

// setAdviceCondition sets the condition with the messages for users. There is none if there never was any message.
func setAdviceCondition(out *flexlvmv1.VolumeManagerStatus, volumes []Outcome, generation int64) {
	var lines []string
	for _, v := range volumes {
		for _, advice := range v.Advice {
			lines = append(lines, v.Status.ID+": "+advice)
		}
	}
	if len(lines) == 0 && meta.FindStatusCondition(out.Conditions, flexlvmv1.ConditionAdvice) == nil {
		return
	}
	setCondition(out, flexlvmv1.ConditionAdvice, len(lines) > 0, "Advised", conditionMessage(lines), "None", "", generation)
}

// tally counts volumes.
type tally struct {
	volumes, usable int
	all             bool // all of them have all their replicas ready
	loaded          bool // all of them have all their replicas complete
	failed          bool // one of them has failed
}

func (t *tally) add(v Outcome) {
	t.failed = t.failed || v.Failed
	t.all = t.all && v.Status.ReadyReplicas >= v.Status.Replicas && v.Status.Replicas > 0
	t.loaded = t.loaded && v.Loaded >= v.Status.Replicas && v.Status.Replicas > 0
	if v.Status.ReadyReplicas > 0 {
		t.usable++
	}
}

func setCondition(out *flexlvmv1.VolumeManagerStatus, kind string, is bool, yes, because, no, why string, generation int64) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: yes, Message: because, ObservedGeneration: generation}
	if !is {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, no, why
	}
	meta.SetStatusCondition(&out.Conditions, c)
}

func summarize(volumes []Outcome) flexlvmv1.DatasetSummary {
	var out flexlvmv1.DatasetSummary
	var ready, wanted, percents, replicas int32
	var total flexlvmv1.Progress
	nodes := map[string]bool{}
	var claims []string
	versions := map[string]int32{}
	for _, v := range volumes {
		s := v.Status
		for version, count := range s.Versions {
			versions[version] += count
		}
		ready, wanted = ready+s.ReadyReplicas, wanted+s.Replicas
		if s.VolumeSource != nil {
			claims = append(claims, s.VolumeSource.PersistentVolumeClaim.ClaimName)
		}
		if p := s.Progress; p != nil {
			percents, replicas = percents+p.Percent*s.Replicas, replicas+s.Replicas
			total.Files, total.FilesTotal = total.Files+p.Files, total.FilesTotal+p.FilesTotal
			total.Bytes, total.BytesTotal = total.Bytes+p.Bytes, total.BytesTotal+p.BytesTotal
			total.SecondsLeft = max(total.SecondsLeft, p.SecondsLeft)
		}
		for _, r := range s.Nodes {
			if r.Node != "" && mayHoldData(r.State) {
				nodes[r.Node] = true
			}
		}
		if s.Message != flexlvmv1.MessageSuccess && out.Message == "" {
			out.Message = s.ID + ": " + s.Message
		}
	}
	out.Ready = fmt.Sprintf("%d/%d", ready, wanted)
	out.Claims = strings.Join(claims, ",")
	out.Version = versionsOf(versions)
	names := slices.Sorted(maps.Keys(nodes))
	if len(names) > maxReplicas {
		names = append(names[:maxReplicas], fmt.Sprintf("and %d more", len(names)-maxReplicas))
	}
	out.Nodes = strings.Join(names, ",")
	if replicas > 0 {
		out.Progress = fmt.Sprintf("%d%%", percents/replicas)
		out.Files = fmt.Sprintf("%d/%d", total.Files, total.FilesTotal)
		out.Bytes = readable(total.Bytes) + "/" + readable(total.BytesTotal)
		out.TimeLeft = timeLeft(total.SecondsLeft)
	}
	return out
}

// versionsOf joins the names of versions, with the number of replicas of each if there are several versions.
func versionsOf(counts map[string]int32) string {
	const maxNames = 4
	names := slices.Sorted(maps.Keys(counts))
	if len(names) == 1 {
		return names[0]
	}
	var out []string
	for i, name := range names {
		if i == maxNames {
			out = append(out, fmt.Sprintf("and %d more", len(names)-maxNames))
			break
		}
		out = append(out, fmt.Sprintf("%s (%d)", name, counts[name]))
	}
	return strings.Join(out, ",")
}

// mayHoldData reports whether a replica in this state has data, or may have. In other states it only names the node
// that it is for.
func mayHoldData(state flexlvmv1.ReplicaState) bool {
	return state != flexlvmv1.ReplicaWaiting && state != flexlvmv1.ReplicaFailed && state != flexlvmv1.ReplicaDisplaced
}

func readable(bytes int64) string { return strings.ReplaceAll(volume.Bytes(bytes).String(), " ", "") }
