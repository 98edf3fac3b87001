package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

const (
	size  = 1 << 30 // the request in examples/pod.yaml
	grown = 2 << 30
)

// play runs the demo, act by act.
func play(ctx context.Context, s *stage) error {
	for _, act := range []struct {
		title string
		do    func(context.Context, *stage) error
	}{
		{"", look},
		{"Install flexlvm, and give it the disk", install},
		{"A claim, and a pod that uses it", claim},
		{"The pod sees exactly the size that was asked for, and nothing used", df},
		{"It can write exactly as much, and not a byte more", fill},
		{"The pod is deleted and made again: its data is there", recreate},
		{"The volume grows while the pod uses it", grow},
		{"Three more claims, and they are deleted", giveUp},
		{"Their volumes wait, with their data, until somebody needs the room", waiting},
		{"One was deleted by mistake: it comes back", undelete},
		{"A claim that does not fit: the volume that was used least recently makes room", makeRoom},
		{"A dataset: a VolumeManager brings what lies in S3 to the node", load},
		{"A job reads it through the one claim", read},
		{"What the node knows", inspect},
	} {
		if act.title != "" {
			s.title(act.title)
		}
		if err := act.do(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func look(ctx context.Context, s *stage) error {
	s.say("")
	_, err := s.kubectl(ctx, "get", "nodes")
	if err != nil {
		return err
	}
	_, err = s.onNode(ctx, "lsblk /dev/vdb")
	return err
}

func install(ctx context.Context, s *stage) error {
	if _, err := s.kubectl(ctx, "apply", "-k", "installer/"); err != nil {
		return err
	}
	s.say("A volume is not evicted in the first two minutes after its claim was deleted, and a little room is kept free ahead of need. The demo cannot wait, and shows an eviction for a claim:\n")
	if _, err := s.kubectl(ctx, "-n", "flexlvm-system", "patch", "daemonset", "flexlvm-gc", "-p",
		`{"spec":{"template":{"spec":{"containers":[{"name":"gc","args":["--min-age=0s","--headroom=0"]}]}}}}`); err != nil {
		return err
	}
	for _, what := range []string{"daemonset/flexlvm-installer", "daemonset/flexlvm-gc", "deployment/flexlvm-provisioner"} {
		if _, err := s.kubectl(ctx, "-n", "flexlvm-system", "rollout", "status", what, "--timeout=180s"); err != nil {
			return err
		}
	}
	s.say("The driver is also the operator's tool. On node1 its directory is in PATH:\n")
	_, err := s.onNode(ctx, "flexlvm vg create /dev/vdb")
	return err
}

func claim(ctx context.Context, s *stage) error {
	if err := startPod(ctx, s); err != nil {
		return err
	}
	out, err := s.kubectl(ctx, "get", "pvc,pod")
	if err != nil {
		return err
	}
	return expect(out, "Bound", "the claim is bound")
}

func startPod(ctx context.Context, s *stage) error {
	if _, err := s.kubectl(ctx, "apply", "-f", "examples/pod.yaml"); err != nil {
		return err
	}
	_, err := s.kubectl(ctx, "wait", "--for=condition=Ready", "pod/data-pod", "--timeout=180s")
	return err
}

func inPod(ctx context.Context, s *stage, args ...string) (string, error) {
	return s.kubectl(ctx, append([]string{"exec", "data-pod", "--"}, args...)...)
}

// dfShows runs df in the pod and checks its sizes; total and used are bytes.
func dfShows(ctx context.Context, s *stage, total, used int) error {
	out, err := inPod(ctx, s, "df", "-k", "/data")
	if err != nil {
		return err
	}
	// The device's name may be on a line of its own.
	want := fmt.Sprintf("%d %d %d", total/1024, used/1024, (total-used)/1024)
	return expect(strings.Join(strings.Fields(out), " "), want, "the size of the volume")
}

func df(ctx context.Context, s *stage) error {
	s.say("The claim asks for 1Gi, which is %d bytes.\n", size)
	return dfShows(ctx, s, size, 0)
}

func fill(ctx context.Context, s *stage) error {
	out, err := s.kubectlMayFail(ctx, "exec", "data-pod", "--", "dd", "if=/dev/zero", "of=/data/fill", "bs=1M")
	if err == nil {
		return errors.New("the write did not stop")
	}
	if err := expect(out, "No space left on device", "the write stops"); err != nil {
		return err
	}
	if out, err = inPod(ctx, s, "stat", "-c", "%n has %s bytes", "/data/fill"); err != nil {
		return err
	}
	if err := expect(out, fmt.Sprintf(" %d bytes", size), "the write stops at the very byte"); err != nil {
		return err
	}
	if err := dfShows(ctx, s, size, size); err != nil {
		return err
	}
	_, err = inPod(ctx, s, "rm", "/data/fill")
	return err
}

func recreate(ctx context.Context, s *stage) error {
	const text = "Written before the pod was deleted"
	if _, err := inPod(ctx, s, "sh", "-c", "echo "+text+" >/data/note"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "delete", "pod", "data-pod"); err != nil {
		return err
	}
	if err := startPod(ctx, s); err != nil {
		return err
	}
	out, err := inPod(ctx, s, "cat", "/data/note")
	if err != nil {
		return err
	}
	return expect(out, text, "the data is there")
}

func grow(ctx context.Context, s *stage) error {
	if _, err := s.kubectl(ctx, "patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}=2Gi", "--timeout=180s"); err != nil {
		return err
	}
	const block = 4096 // the file with the note
	if err := dfShows(ctx, s, grown, block); err != nil {
		return err
	}
	out, err := s.kubectl(ctx, "get", "pod", "data-pod")
	if err != nil {
		return err
	}
	return expect(strings.Join(strings.Fields(out), " "), "1/1 Running 0", "the pod was not restarted")
}

func inspect(ctx context.Context, s *stage) error {
	out, err := s.onNode(ctx, "flexlvm volumes list")
	if err != nil {
		return err
	}
	if strings.Contains(out, s.volumes["red"]) {
		return errors.New("the volume that was evicted is still there")
	}
	for of, state := range map[string]string{"green": "ready", "blue": "unreferenced", "pictures": "ready"} {
		if err := listed(out, s.volumes[of], state); err != nil {
			return err
		}
	}
	_, err = s.onNode(ctx, "flexlvm doctor")
	return err
}
