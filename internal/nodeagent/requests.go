package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// maxAnswers bounds the remembered answers: a lagging watch still shows requests that were answered long ago.
const maxAnswers = 100

// requested returns the requests in the node's NodeStorage that have no answer yet.
func (d *Daemon) requested() (out []flexlvmv1.VolumeRequest) {
	own, synced := d.watches.nodeStorage(d.cfg.Node)
	if !synced || own == nil || d.cfg.DryRun {
		return nil
	}
	for _, r := range own.Spec.Requests {
		if !answered(own.Status.Answers, r.ID) && !answered(d.answers, r.ID) {
			out = append(out, r)
		}
	}
	return out
}

func answered(answers []flexlvmv1.VolumeAnswer, id string) bool {
	return slices.ContainsFunc(answers, func(a flexlvmv1.VolumeAnswer) bool { return a.ID == id })
}

// answerRequests carries out what people have requested of the node. The round's PersistentVolumes were confirmed with
// the API server (mustConfirm), and so is each request (isStillRequested). Killed before the answer is written, it
// leaves the request, which is then carried out again.
func (d *Daemon) answerRequests(ctx context.Context, f observation) {
	if !f.confirmed {
		return
	}
	moved := map[string]bool{} // the round's view does not have their new states
	for _, r := range d.requested() {
		if ctx.Err() != nil {
			return
		}
		requested, err := d.isStillRequested(ctx, r)
		if err != nil {
			klog.FromContext(ctx).V(1).Info("It is unknown whether a request is still wanted; it waits", "volume", r.Group+"/"+r.Name, "err", err.Error())
			return
		}
		if !requested {
			continue
		}
		if moved[r.Group+"/"+r.Name] {
			d.kick()
			continue
		}
		moved[r.Group+"/"+r.Name] = true
		message, err := d.carryOutRequest(ctx, f, r)
		if err != nil {
			message = err.Error()
		}
		if len(d.answers) >= maxAnswers {
			d.answers = d.answers[1:]
		}
		d.answers = append(d.answers, flexlvmv1.VolumeAnswer{ID: r.ID, Done: err == nil, Message: clip(message, maxMessage)})
		klog.FromContext(ctx).Info("Answered a request about a volume", "volume", r.Group+"/"+r.Name, "to", r.State, "done", err == nil, "answer", message)
		d.kick() // the next report has the answer
	}
}

// isStillRequested reports whether the API server has a request, and no answer to it. The watch is not enough: it may
// lag, and a user relies on the withdrawal of a request; and a new daemon may not have seen its predecessor's
// answers.
func (d *Daemon) isStillRequested(ctx context.Context, r flexlvmv1.VolumeRequest) (bool, error) {
	own, err := d.api.NodeStorage(ctx, d.cfg.Node)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	there := slices.ContainsFunc(own.Spec.Requests, func(is flexlvmv1.VolumeRequest) bool { return equality.Semantic.DeepEqual(is, r) })
	return there && !answered(own.Status.Answers, r.ID), nil
}

// carryOutRequest carries out one request and returns the message of its answer.
func (d *Daemon) carryOutRequest(ctx context.Context, f observation, r flexlvmv1.VolumeRequest) (string, error) {
	to := volume.State(r.State)
	v, err := eviction.AdmitRequest(f.view, eviction.Request{Time: r.Time.Time, Group: volume.Group(r.Group), Name: volume.Name(r.Name), FS: r.FilesystemUUID, To: to})
	if err != nil {
		return "", err
	}
	key := eviction.KeyOf(&v).String()
	if v.State == to {
		return fmt.Sprintf("%s is %s already", key, to), nil
	}
	if to == volume.Unreferenced {
		if err := d.checkUnnamed(ctx, v); err != nil {
			return "", err
		}
	}
	after, err := d.engine.SetStateOf(ctx, refOf(v), v.FS, to)
	if errors.Is(err, node.ErrBusy) {
		err = fmt.Errorf("%w; ask again when that call has ended", err)
	}
	if err != nil {
		return "", err
	}
	message := fmt.Sprintf("%s is %s now (it was %s): %s", key, to, v.State, undelete.Consequence(to, after))
	d.events.onNode(normal, either(to == volume.Retained, "VolumeRetained", "VolumeForgotten"), message)
	return message, nil
}

// answersTo returns the answers to the requests that still exist, from the NodeStorage and from this process.
func (d *Daemon) answersTo(own *flexlvmv1.NodeStorage) []flexlvmv1.VolumeAnswer {
	var out []flexlvmv1.VolumeAnswer
	for _, r := range own.Spec.Requests {
		for _, a := range slices.Concat(own.Status.Answers, d.answers) {
			if a.ID == r.ID && !answered(out, a.ID) {
				out = append(out, a)
			}
		}
	}
	return out
}
