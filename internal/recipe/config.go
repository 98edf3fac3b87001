package recipe

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// Names of a job's persistent storage in Twister2's configuration files.
const (
	ConfigClass = "kubernetes.persistent.storage.class"
	ConfigSize  = "persistent.volume.per.worker"
	ConfigMode  = "kubernetes.storage.access.mode"
)

// configPrefix precedes these names in later releases of Twister2.
const configPrefix = "twister2.resource."

// configElsewhere maps other names about storage to what replaces them.
var configElsewhere = map[string]string{
	"nfs.server.address": "the StorageClass determines the server and the path of the export (docs/jobs.md, Classes); set " + ConfigClass,
	"nfs.server.path":    "the StorageClass determines the server and the path of the export (docs/jobs.md, Classes); set " + ConfigClass,
}

// gibibyte is the unit of a size without a unit.
const gibibyte = 1 << 30

// configKeys write a value of the file into the settings, by its name in the file.
var configKeys = map[string]func(s *Settings, value any) error{
	ConfigClass: func(s *Settings, value any) (err error) {
		s.Class, err = word(value)
		return err
	},
	ConfigMode: func(s *Settings, value any) error {
		mode, err := word(value)
		s.AccessMode = corev1.PersistentVolumeAccessMode(mode)
		return err
	},
	ConfigSize: func(s *Settings, value any) (err error) {
		s.SizePerWorker, err = sizeOf(value)
		return err
	},
}

// ReadConfig sets the settings from a file in Twister2's format, except for the names in kept, which
// the user has set otherwise. A name other than the three is an error, because somebody relies on it.
func (s *Settings) ReadConfig(file string, kept ...string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read --config: %w", err)
	}
	var said map[string]any
	if err := yaml.UnmarshalStrict(text, &said); err != nil {
		return fmt.Errorf("read --config %s: %w", file, err)
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		key := strings.TrimPrefix(name, configPrefix)
		if _, twice := said[key]; twice && key != name {
			return fmt.Errorf("--config %s: both %s and %s are set; remove one of them", file, key, name)
		}
		write, known := configKeys[key]
		if instead := configElsewhere[key]; instead != "" {
			return fmt.Errorf("--config %s: %s cannot be set for a job: %s", file, name, instead)
		}
		if !known {
			return fmt.Errorf("--config %s: %s is not known; the file may set %s", file, name, strings.Join(slices.Sorted(maps.Keys(configKeys)), ", "))
		}
		if slices.Contains(kept, key) {
			continue
		}
		if err := write(s, said[name]); err != nil {
			return fmt.Errorf("--config %s: %s: %w", file, name, err)
		}
	}
	return nil
}

func word(value any) (string, error) {
	text, is := value.(string)
	if !is {
		return "", fmt.Errorf("%v is not a string", value)
	}
	return text, nil
}

// sizeOf parses a number of GiB, which may have a fraction, as in Twister2, or a quantity.
func sizeOf(value any) (resource.Quantity, error) {
	switch v := value.(type) {
	case float64:
		if !(v >= 0) || v > math.MaxInt64/gibibyte {
			return resource.Quantity{}, fmt.Errorf("%v is not a valid number of GiB; give 0 or more, such as 10", v)
		}
		return *resource.NewQuantity(int64(math.Ceil(v*gibibyte)), resource.BinarySI), nil
	case string:
		if number, err := strconv.ParseFloat(v, 64); err == nil { // quotes do not change the unit
			return sizeOf(number)
		}
		q, err := resource.ParseQuantity(v)
		if err != nil {
			return q, fmt.Errorf("%q: %w; give a number of GiB, or a size such as 10Gi", v, err)
		}
		return q, nil
	}
	return resource.Quantity{}, fmt.Errorf("%v is neither a number of GiB nor a size such as 10Gi", value)
}
