package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// maxRequests is the maximum number of requests in a NodeStorage.
const maxRequests = 20

// requestOptions are the options of retain and forget, which differ only in the state that they request.
type requestOptions struct {
	wanted overview.Wanted
	to     volume.State
	wait   time.Duration
}

func retainCommand(s *session) *cobra.Command {
	o := requestOptions{to: volume.Retained}
	cmd := &cobra.Command{
		Use:   "retain CLAIM",
		Short: "Protect the volume of a deleted claim from eviction",
		Long: `retain protects the volume of a deleted claim from eviction, however full the disk gets, until
undelete restores it or forget allows its eviction. Name an orphan with --volume. The node
carries out the request, as flexlvm volumes retain does there, and answers it. This needs
permission to update NodeStorages.`,
	}
	return o.build(cmd, s)
}

func forgetCommand(s *session) *cobra.Command {
	o := requestOptions{to: volume.Unreferenced}
	cmd := &cobra.Command{
		Use:   "forget CLAIM",
		Short: "Allow the eviction of a retained volume or an orphan",
		Long: `forget allows the eviction of a volume that nobody needs any more: a retained volume, or an
orphan, which you name with --volume. The node evicts it when its room is needed, or immediately
if its class says so. Until then undelete restores it. Volumes that a PersistentVolume names, and
volumes in use, are refused. This needs permission to update NodeStorages.`,
	}
	return o.build(cmd, s)
}

func (o *requestOptions) build(cmd *cobra.Command, s *session) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := checkNamed(cmd, args, "volume", "node", "namespace"); err != nil {
			return err
		}
		if len(args) == 1 && o.wanted.Volume == "" || len(args) == 0 && o.wanted.Volume != "" {
			return nil
		}
		return fmt.Errorf("%q: name either the claim that was deleted, or the volume with --volume", args)
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return s.completeReleased(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			o.wanted.Claim = args[0]
		}
		if o.wait <= 0 {
			return fmt.Errorf("--wait %s: give more than 0, such as 1m; after that time the request is withdrawn", o.wait)
		}
		c, err := s.client()
		if err != nil {
			return err
		}
		if o.wanted.Namespace, err = s.namespace(); err != nil {
			return err
		}
		return o.submit(cmd.Context(), c, controlFilter{cmd.OutOrStdout()})
	}
	cmd.Flags().StringVar(&o.wanted.Volume, "volume", "", "name of the volume, which is that of its former PersistentVolume")
	cmd.Flags().StringVar(&o.wanted.Node, "node", "", "node of the volume, if several nodes have one of that name")
	cmd.Flags().DurationVar(&o.wait, "wait", time.Minute, "how long to wait for the node's answer")
	return cmd
}

// submit adds the request to the node's NodeStorage, waits for the answer, and removes the request again, also if
// there is no answer.
func (o *requestOptions) submit(ctx context.Context, c client.Client, out io.Writer) error {
	there, err := readCandidates(ctx, c, o.wanted)
	if err != nil {
		return err
	}
	found, err := there.pick(overview.FindAny)
	if err != nil {
		return err
	}
	request := flexlvmv1.VolumeRequest{
		ID: uuid.NewString(), Time: metav1.Now(), Group: string(volume.PoolName(found.Released.Pool).Group()), Name: found.Released.Name,
		FilesystemUUID: found.Released.FilesystemUUID, State: string(o.to),
	}
	sent := false
	err = updateSpec(ctx, c, found.Node, func(s *flexlvmv1.NodeStorage) error {
		err := addRequest(s, request)
		sent = sent || err == nil
		return err
	})
	if err != nil && (!sent || refused(err)) {
		return err
	}
	var answer *flexlvmv1.VolumeAnswer
	if err == nil {
		answer, err = o.await(ctx, c, found.Node, request.ID)
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawWithin)
	defer cancel()
	arrived := false
	withdrawn := updateSpec(cleanup, c, found.Node, func(s *flexlvmv1.NodeStorage) error {
		was := len(s.Spec.Requests)
		s.Spec.Requests = slices.DeleteFunc(s.Spec.Requests, func(r flexlvmv1.VolumeRequest) bool { return r.ID == request.ID })
		arrived = arrived || len(s.Spec.Requests) < was
		if late := answerTo(s, request.ID); late != nil {
			answer, err = late, nil
		}
		return nil
	})
	if answer == nil {
		return unanswered(found, request.ID, err, arrived, withdrawn)
	}
	if withdrawn != nil {
		fmt.Fprintf(out, "The request was answered, but could not be removed from NodeStorage %s, where it has no further effect: %v\n", found.Node, withdrawn)
	}
	if !answer.Done {
		return fmt.Errorf("node %s reports: %s", found.Node, answer.Message)
	}
	fmt.Fprintf(out, "%s (%s)\n", answer.Message, found.Provenance())
	return nil
}

// refused reports whether the error of a write means that the API server has not carried it out. With any other
// error, the write may have succeeded and only its response been lost.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// withdrawWithin is the timeout for removing a request.
const withdrawWithin = 10 * time.Second

// unanswered returns the error for a request without an answer that was removed, could not be removed, or was
// not there. A daemon that has started to carry it out continues in any case, and a late write may still
// arrive.
func unanswered(found overview.Candidate, id string, why error, arrived bool, withdrawn error) error {
	node, name := found.Node, found.Released.Pool+"/"+found.Released.Name
	look := fmt.Sprintf("check its state with kubectl flexlvm volumes --node %s, and whether the node daemon runs there", node)
	edit := fmt.Sprintf("remove the request with kubectl edit nodestorage %s (spec.requests, id %s)", node, id)
	switch {
	case withdrawn != nil:
		return fmt.Errorf("%w. The request for volume %s could not be removed from NodeStorage %s (%w), so the node may still carry it out: %s; %s", why, name, node, withdrawn, look, edit)
	case !arrived:
		return fmt.Errorf("%w. The request for volume %s is not in NodeStorage %s. If it arrives there late, %s; %s", why, name, node, edit, look)
	}
	return fmt.Errorf("%w. The request for volume %s was withdrawn, but if the node had already started with it, it is carried out nevertheless: %s", why, name, look)
}

// answerTo returns the node's answer to a request, or nil.
func answerTo(s *flexlvmv1.NodeStorage, id string) *flexlvmv1.VolumeAnswer {
	i := slices.IndexFunc(s.Status.Answers, func(a flexlvmv1.VolumeAnswer) bool { return a.ID == id })
	if i < 0 {
		return nil
	}
	return &s.Status.Answers[i]
}

// addRequest adds a request. If there are too many, it first removes requests that were answered.
func addRequest(s *flexlvmv1.NodeStorage, request flexlvmv1.VolumeRequest) error {
	if len(s.Spec.Requests) >= maxRequests {
		s.Spec.Requests = slices.DeleteFunc(s.Spec.Requests, func(r flexlvmv1.VolumeRequest) bool {
			return slices.ContainsFunc(s.Status.Answers, func(a flexlvmv1.VolumeAnswer) bool { return a.ID == r.ID })
		})
	}
	if len(s.Spec.Requests) >= maxRequests {
		return fmt.Errorf("node %s has %d unanswered requests; check whether its node daemon runs", s.Name, len(s.Spec.Requests))
	}
	s.Spec.Requests = append(s.Spec.Requests, request)
	return nil
}

// updateSpec updates the spec of a NodeStorage, and retries on conflicts.
func updateSpec(ctx context.Context, c client.Client, node string, mutate func(*flexlvmv1.NodeStorage) error) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		s := &flexlvmv1.NodeStorage{}
		if err := c.Get(ctx, client.ObjectKey{Name: node}, s); err != nil {
			return err
		}
		if err := mutate(s); err != nil {
			return err
		}
		return c.Update(ctx, s)
	})
	if err != nil {
		return fmt.Errorf("update NodeStorage %s: %w", node, err)
	}
	return nil
}

func (o *requestOptions) await(ctx context.Context, c client.Client, node, id string) (answer *flexlvmv1.VolumeAnswer, err error) {
	err = wait.PollUntilContextTimeout(ctx, pollInterval, o.wait, true, func(ctx context.Context) (bool, error) {
		s := &flexlvmv1.NodeStorage{}
		if err := c.Get(ctx, client.ObjectKey{Name: node}, s); err != nil {
			return false, fmt.Errorf("read the answer of node %s: %w", node, err)
		}
		answer = answerTo(s, id)
		return answer != nil, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return nil, fmt.Errorf("node %s did not answer within %s", node, o.wait)
	}
	return answer, err
}
