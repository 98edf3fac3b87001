package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// colors are the claims of claims.yaml and the pods of pods.yaml. red is used least recently, and green is
// undeleted.
var colors = []string{"red", "green", "blue"}

const note = "Written before the claim was deleted"

// giveUp creates three claims and deletes them.
func giveUp(ctx context.Context, s *stage) error {
	if _, err := s.kubectl(ctx, "apply", "-f", "test/demo/claims.yaml", "-f", "test/demo/pods.yaml"); err != nil {
		return err
	}
	pods := []string{"pod/red", "pod/green", "pod/blue"}
	if _, err := s.kubectl(ctx, append([]string{"wait", "--for=condition=Ready", "--timeout=180s"}, pods...)...); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "exec", "green", "--", "sh", "-c", "echo "+note+" >/data/note"); err != nil {
		return err
	}
	for _, color := range colors {
		name, err := s.quiet(ctx, "get", "pvc", color, "-o", "jsonpath={.spec.volumeName}")
		if err != nil {
			return err
		}
		s.volumes[color] = name
	}
	if _, err := s.kubectl(ctx, append([]string{"get", "pvc"}, colors...)...); err != nil {
		return err
	}
	for _, pod := range pods { // one after the other, so that red was used least recently
		if _, err := s.kubectl(ctx, "delete", pod); err != nil {
			return err
		}
	}
	if _, err := s.kubectl(ctx, append([]string{"delete", "pvc"}, colors...)...); err != nil {
		return err
	}
	err := s.await(ctx, "the node daemon reports three volumes that wait", func() (bool, error) {
		out, err := s.quiet(ctx, "get", "nodestorage", "node1", "-o", "jsonpath={.status.pools[0].volumesByState.unreferenced}")
		return out == "3", err
	})
	if err != nil {
		return err
	}
	// A PersistentVolume is deleted once its node has reported the volume.
	return s.await(ctx, "the PersistentVolume of the one to bring back is gone", func() (bool, error) {
		out, err := s.quiet(ctx, "get", "pv", s.volumes["green"], "--ignore-not-found", "-o", "name")
		return strings.TrimSpace(out) == "", err
	})
}

// waiting shows the three unreferenced volumes.
func waiting(ctx context.Context, s *stage) error {
	out, err := s.kubectl(ctx, "get", "nodestorage")
	if err != nil {
		return err
	}
	if err := expect(strings.Join(strings.Fields(out), " "), "node1 True ", "the node's storage is ready"); err != nil {
		return err
	}
	out, err = s.onNode(ctx, "flexlvm volumes list")
	if err != nil {
		return err
	}
	for _, color := range colors {
		if err := listed(out, s.volumes[color], "unreferenced"); err != nil {
			return err
		}
	}
	return nil
}

// listed returns an error unless a volume is in the output of `flexlvm volumes list` in this state.
func listed(list, name, state string) error {
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] == name && fields[2] == state {
			return nil
		}
	}
	return fmt.Errorf("the list of volumes: expected to see %s in state %s", name, state)
}

// undelete restores green.
func undelete(ctx context.Context, s *stage) error {
	line := "flexlvm volumes undelete " + s.volumes["green"] + " --claim green --storage-class flexlvm"
	if err := s.nodeToKubectl(ctx, line, "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "apply", "-f", "test/demo/pods.yaml", "-l", "color=green"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=180s", "pod/green"); err != nil {
		return err
	}
	out, err := s.kubectl(ctx, "exec", "green", "--", "cat", "/data/note")
	if err != nil {
		return err
	}
	return expect(out, note, "the data is there")
}

// makeRoom requests more space than is free.
func makeRoom(ctx context.Context, s *stage) error {
	if _, err := s.onNode(ctx, "vgs --units m flexlvm"); err != nil {
		return err
	}
	s.say("A claim of 1536 MiB takes 1676, with XFS's log and metadata: more than is free.\n")
	if _, err := s.kubectl(ctx, "apply", "-f", "test/demo/large.yaml"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=180s", "pod/large"); err != nil {
		return err
	}
	// The event may arrive a moment after the eviction.
	err := s.await(ctx, "the node's event says what was evicted", func() (bool, error) {
		out, err := s.quiet(ctx, "get", "events", "--field-selector", "reason=VolumeEvicted", "-o", "name")
		return strings.TrimSpace(out) != "", err
	})
	if err != nil {
		return err
	}
	out, err := s.kubectl(ctx, "get", "events", "--field-selector", "reason=VolumeEvicted", "-o", "custom-columns=NODE:.involvedObject.name,MESSAGE:.message")
	if err != nil {
		return err
	}
	if strings.Count(out, "was evicted") != 1 {
		return errors.New("expected to see one eviction")
	}
	return expect(out, s.volumes["red"]+" was evicted (Promised)", "the least recently used one has gone")
}

const patience = 2 * time.Minute

// await waits for a state for which no command can wait.
func (s *stage) await(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("it has not come about in %s: %s", patience, what), err)
		case <-tick.C:
		}
	}
}
