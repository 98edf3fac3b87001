// Package cgroup finds the control groups of pods and sets limits on their I/O, and creates a group
// for the host's programs. It supports only cgroup v2: v1 does not attribute writes through the
// page cache, and cannot start a process directly in a group.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is where the host mounts its control groups.
const Root = "/sys/fs/cgroup"

var (
	// ErrVersion: the host has no cgroup v2.
	ErrVersion = errors.New("the node does not use cgroup v2; boot it with systemd.unified_cgroup_hierarchy=1 and let the kubelet and its runtime use it")
	// ErrNoController: the groups of pods have no io.max.
	ErrNoController = errors.New("the io controller is not on for it; write +io into cgroup.subtree_control of each group above it, from the top, and see whether the node's kernel has CONFIG_BLK_DEV_THROTTLING")
	// ErrGone: the pod or the device no longer exists.
	ErrGone = errors.New("gone meanwhile")
)

// deepest is how far below the root a pod's group may be: four levels for a kubelet with the
// systemd driver, and as many for groups that the node itself may run in.
const deepest = 8

// A Tree is the hierarchy of a host's control groups.
type Tree struct {
	root string
}

// New returns the tree that is mounted at root.
func New(root string) *Tree { return &Tree{root: root} }

// check fails if the tree is not one of cgroup v2.
func (t *Tree) check() error {
	_, err := os.Stat(filepath.Join(t.root, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrVersion
	}
	if err != nil {
		return fmt.Errorf("check the control groups: %w", err)
	}
	return nil
}

// Pods returns the groups of pods, by the pods' UIDs. A pod without a group is left out: the
// kubelet has not created the group yet, or has removed it.
func (t *Tree) Pods(uids map[string]bool) (map[string]string, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	found := map[string]string{}
	level := []string{t.root}
	for range deepest {
		var next []string
		for _, dir := range level {
			entries, err := os.ReadDir(dir)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				continue // groups come and go
			}
			if err != nil {
				return nil, fmt.Errorf("look for the control groups of pods: %w", err)
			}
			for _, e := range entries {
				path := filepath.Join(dir, e.Name())
				switch uid := podOf(e.Name()); {
				case !e.IsDir():
				case uid == "":
					next = append(next, path)
				case uids[uid] && found[uid] == "":
					found[uid] = path
				}
			}
		}
		if len(found) == len(uids) {
			break
		}
		level = next
	}
	return found, nil
}

var podUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// podOf returns the UID of the pod whose group has this name; "" if it is not a pod's group. The
// kubelet names it pod<UID>, and with the systemd driver <the parent group>-pod<UID, with _ for
// ->.slice.
func podOf(name string) string {
	if slice, is := strings.CutSuffix(name, ".slice"); is {
		name = strings.ReplaceAll(slice[strings.LastIndexByte(slice, '-')+1:], "_", "-")
	}
	if uid, is := strings.CutPrefix(name, "pod"); is && podUID.MatchString(uid) {
		return uid
	}
	return ""
}
