package main

import (
	"github.com/flexlvm/flexlvm/internal/nfsquota"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// sizeKeepers returns what holds the directories of these exports to their sizes.
func sizeKeepers(exports []string) (all []nodeagent.SizeKeeper, err error) {
	known := map[string]bool{}
	for _, dir := range exports {
		k, err := nfsquota.New(dir)
		if err != nil {
			return nil, err
		}
		if known[dir] {
			return nil, &volume.FieldError{Field: "--nfs-export", Value: dir, Reason: "is given twice"}
		}
		known[dir] = true
		all = append(all, k)
	}
	return all, nil
}
