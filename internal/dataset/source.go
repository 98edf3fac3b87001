package dataset

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// DefaultClass is the StorageClass of replicas whose volume names none.
const DefaultClass = "flexlvm-dataset"

// defaultRefresh is how often a source is looked at again where refresh says only
// "true".
const defaultRefresh = 5 * time.Minute

// Source is a VolumeConfig as its loader and its volumes see it.
type Source struct {
	Type     flexlvmv1.SourceType
	URL      string   // operand of the loader; empty where nothing is loaded
	Flags    []string // of the loader, which decide what is loaded
	Access   []string // flags of the loader for the way to the source alone
	Include  []string // one glob for each replica, as VCK's, or none at all
	OrObject bool     // the slash at the end of URL was added: it may be one object
	Dir      string   // below the root of the volume, where the data go; may be empty
	NFS      *corev1.NFSVolumeSource
	Shared   *sharedFrom
	Capacity resource.Quantity
	Class    string
	Endpoint string // the server, without its scheme; empty for the default of the type
	Eviction volume.EvictionPolicy

	Claim          string // that is copied; mounted by the loader, read-only
	Secret         string // credentials; mounted by the loader, read by nobody here
	CAConfigMap    string // its key ca.crt holds who signed the endpoint's certificate
	ServiceAccount string
	Checksum       string        // what loads verify; empty for the loader's default. Uploads have no such flag
	Timeout        time.Duration // 0: none
	Bandwidth      string        // bytes a second; empty: no bound
	Stream         bool
	StreamAfter    string
	Refresh        schedule // when news are fetched; nil: never
	OutputURL      string
	Mirror         bool          // what changes is uploaded, to OutputURL or to where it came from
	Advice         []string      // warnings for the author of the spec
	Displaceable   bool          // another dataset may displace it while no pod reads it
	Displaces      bool          // it may displace such others
	Peers          string        // Secret with the token by which replicas are copied from each other; empty: never
	SourceLoaders  int           // how many loaders ask the source at once, with Peers; 0: any number
	Grace          time.Duration // how long a replica stays on a node that does not match nodeAffinity
}

// Writable reports whether consumers write. They then use the claim of the only replica
// itself.
func (s Source) Writable() bool {
	return s.Type == flexlvmv1.SourceS3Dev || s.Type == flexlvmv1.SourceAeon || s.Mirror
}

// Target is where the content of a volume is uploaded to.
func (s Source) Target() string {
	if s.OutputURL == "" && s.Mirror {
		return s.URL
	}
	return s.OutputURL
}

// Copies reports whether there are replicas on nodes at all.
func (s Source) Copies() bool {
	return s.Type != flexlvmv1.SourceNFS && s.Type != flexlvmv1.SourceShared
}

// Load identifies what replica index holds: one with another Load is outdated. Another
// server has other data.
func (s Source) Load(index int) string {
	if s.Endpoint == "" {
		return s.loadBefore(index)
	}
	return digest(s.URL, s.Flags, s.Dir, s.include(index), s.Endpoint)
}

// server names the server for an annotation.
func (s Source) server() string { return cmp.Or(s.Endpoint, "default") }

// loadBefore is what Load returned in older releases, which did not include the server in the digest.
func (s Source) loadBefore(index int) string {
	return digest(s.URL, s.Flags, s.Dir, s.include(index))
}

func (s Source) include(index int) []string {
	if index < len(s.Include) {
		return []string{"--path=" + s.Include[index]}
	}
	return nil
}

// digest returns a short hash of parts, to tell whether they have changed.
func digest(parts ...any) string {
	text, err := json.Marshal(parts)
	if err != nil {
		panic(err) // only strings and such come here
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16]
}

// Options that several sources have.
var (
	optionsOfReads = []string{"evictionPolicy", "storageClass", "dataPath", "nodeAffinityGrace"}
	optionsOfAll   = slices.Concat(optionsOfReads, []string{"outputURL"})
	optionsOfLoads = []string{"timeoutForDataDownload", "include", "exclude", "parallel", "bandwidth", "caConfigMap", "stream", "streamAfter", "distributionStrategy", "refresh", "refreshTimeZone", "checksum", "displaceable", "displaces", "peersSecretName", "sourceLoaders"}
)

// A sourceKind is what a sourceType has of its own.
type sourceKind struct {
	options []string
	// read reads them into s.
	read func(s *Source, v flexlvmv1.VolumeConfig, options map[string]string) error
	// loaded: the loader fills the volumes.
	loaded bool
}

// sources are all types of sources. A row here, the constant of its type in api/v1 and
// one of the loader's sources make a new one.
var sources = map[flexlvmv1.SourceType]sourceKind{
	flexlvmv1.SourceS3:        {slices.Concat(optionsOfAll, optionsOfLoads, optionsOfS3), (*Source).readS3, true},
	flexlvmv1.SourceS3Dev:     {slices.Concat(optionsOfAll, optionsOfLoads, optionsOfS3), (*Source).readS3, true},
	flexlvmv1.SourcePachyderm: {slices.Concat(optionsOfAll, optionsOfLoads, optionsOfPachyderm), (*Source).readPachyderm, true},
	flexlvmv1.SourceHTTP:      {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfHTTP), (*Source).readHTTP, true},
	flexlvmv1.SourceHub:       {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfHub), (*Source).readHub, true},
	flexlvmv1.SourceOCI:       {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfOCI), (*Source).readOCI, true},
	flexlvmv1.SourcePVC:       {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfPVC), (*Source).readPVC, true},
	flexlvmv1.SourceGCS:       {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfClouds), (*Source).readGCS, true},
	flexlvmv1.SourceAzure:     {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfClouds), (*Source).readAzure, true},
	flexlvmv1.SourceNFS:       {[]string{"server", "path", "dataPath"}, (*Source).readNFS, false},
	flexlvmv1.SourceShared:    {optionsOfShared, (*Source).readShared, false},
	flexlvmv1.SourceAeon:      {slices.Concat(optionsOfAll, optionsOfAeon), (*Source).readAeon, false},
}

// check refuses options of other sources, and passwords in addresses; readResync refuses resync in
// words of its own.
func (k sourceKind) check(v flexlvmv1.VolumeConfig, options map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains(k.options, key) && key != "resync" {
			return fmt.Errorf("option %q does not belong to sourceType %s; remove it, or write one of %s", key, v.SourceType, strings.Join(k.options, ", "))
		}
	}
	if len(v.Labels) == 0 {
		return fmt.Errorf("labels cannot be empty; give the volume at least one, such as dataset: NAME")
	}
	return checkAddresses(v, options)
}

// ParseSource parses a volume. The error says what is wrong and what to write.
func ParseSource(v flexlvmv1.VolumeConfig) (Source, error) { return parseSource(v, false) }

// parseSource parses a volume. pulled: its replica was made when resync meant what refresh
// means now.
func parseSource(v flexlvmv1.VolumeConfig, pulled bool) (Source, error) {
	options := optionsOf(v)
	kind, known := sources[v.SourceType]
	if !known {
		return Source{}, fmt.Errorf("sourceType %q is not known; it is one of %s", v.SourceType, sourceTypes())
	}
	if err := kind.check(v, options); err != nil {
		return Source{}, err
	}
	s := Source{
		Type: v.SourceType, Class: DefaultClass,
		Secret: options["awsCredentialsSecretName"], CAConfigMap: options["caConfigMap"], ServiceAccount: options["serviceAccountName"],
		OutputURL: options["outputURL"],
	}
	if class := options["storageClass"]; class != "" {
		s.Class = class
	}
	anonymous, err := boolean(options, "anonymous")
	if err != nil {
		return Source{}, err
	}
	options["anonymous"] = strconv.FormatBool(anonymous)
	if s.Capacity, err = resource.ParseQuantity(v.Capacity); err != nil {
		return Source{}, fmt.Errorf("parse capacity %q: %w", v.Capacity, err)
	}
	if s.Eviction, err = volume.ParseEvictionPolicy("evictionPolicy", options["evictionPolicy"]); err != nil {
		return Source{}, err
	}
	if err = s.checkAll(v, options); err != nil {
		return Source{}, err
	}
	if err = s.readResync(v.Replicas, options, pulled); err != nil {
		return Source{}, err
	}
	if err = s.checkOutput(options); err != nil {
		return Source{}, err
	}
	if err = s.readGrace(options["nodeAffinityGrace"]); err != nil {
		return Source{}, err
	}
	if s.Writable() && s.Eviction != volume.EvictNever {
		return Source{}, fmt.Errorf("evictionPolicy %s: what consumers write to a volume of sourceType %s is nowhere else; use Never", s.Eviction, s.Type)
	}
	if err := kind.read(&s, v, options); err != nil {
		return Source{}, err
	}
	if !kind.loaded {
		return s, nil
	}
	if s.Endpoint == "" {
		s.Endpoint = protocol.EndpointOf(options["endpointURL"])
	}
	s.Flags = append(s.Flags, flagsOf(options, contentFlags)...)
	s.Access = append(s.Access, flagsOf(options, accessFlags)...)
	return s, s.readLoading(v.Replicas, options)
}

// optionsOf are the options of a volume. KVC had one of them as a field.
func optionsOf(v flexlvmv1.VolumeConfig) map[string]string {
	out := map[string]string{}
	for key, value := range v.Options {
		out[key] = string(value)
	}
	if v.EndpointURL != "" {
		out["endpointURL"] = v.EndpointURL
	}
	return out
}

// sourceTypes names all types.
func sourceTypes() string {
	var out []string
	for _, t := range slices.Sorted(maps.Keys(sources)) {
		out = append(out, string(t))
	}
	return strings.Join(out, ", ")
}

// Flags of the loader by the options that give them.
var (
	contentFlags = [][2]string{{"versionID", "--version-id"}, {"include", "--include"}, {"exclude", "--exclude"}}
	accessFlags  = [][2]string{{"endpointURL", "--endpoint"}, {"region", "--region"}, {"addressStyle", "--address-style"}, {"parallel", "--parallel"}}
)

func flagsOf(options map[string]string, table [][2]string) []string {
	var out []string
	for _, row := range table {
		if value := options[row[0]]; value != "" {
			out = append(out, row[1]+"="+value)
		}
	}
	return out
}

// checksumFlags say what loads verify.
func (s Source) checksumFlags() []string {
	if s.Checksum == "" {
		return nil
	}
	return []string{"--checksum=" + s.Checksum}
}

// readLoading reads how loading goes.
func (s *Source) readLoading(replicas flexlvmv1.ReplicaCount, options map[string]string) error {
	if text := options["timeoutForDataDownload"]; text != "" {
		timeout, err := time.ParseDuration(text)
		if err == nil && timeout <= 0 {
			err = fmt.Errorf("%s is not more than 0", timeout)
		}
		if err != nil {
			return fmt.Errorf("error while parsing timeout for data download: %w", err)
		}
		s.Timeout = timeout
	}
	var err error
	if s.Stream, err = boolean(options, "stream"); err != nil {
		return err
	}
	if s.Stream {
		s.StreamAfter = "1"
		if after := options["streamAfter"]; after != "" {
			s.StreamAfter = after
		}
	}
	s.Bandwidth, s.Checksum = options["bandwidth"], options["checksum"]
	if err := checkBounds(options); err != nil {
		return err
	}
	if err := s.readDisplacing(options); err != nil {
		return err
	}
	if err := s.readRefresh(options["refresh"], options["refreshTimeZone"]); err != nil {
		return err
	}
	if err := s.readPeers(options); err != nil {
		return err
	}
	return s.readDistribution(replicas, options)
}

// readDistribution gives each replica its glob: the globs in their order, each as
// often as it says.
func (s *Source) readDistribution(replicas flexlvmv1.ReplicaCount, options map[string]string) error {
	text := options["distributionStrategy"]
	if text == "" {
		return nil
	}
	counts := map[string]int{}
	if err := json.Unmarshal([]byte(text), &counts); err != nil {
		return fmt.Errorf("invalid distributionStrategy [%s] specified, it must be a map[string]int", text)
	}
	if options["include"] != "" {
		return fmt.Errorf("distributionStrategy and include both say what to load; use one of them")
	}
	total := 0
	for _, glob := range slices.Sorted(maps.Keys(counts)) {
		// Each alone, so that no sum runs over.
		if count := counts[glob]; count < 0 || count > int(replicas) {
			total = count
			break
		}
		total += counts[glob]
		s.Include = append(s.Include, slices.Repeat([]string{glob}, counts[glob])...)
	}
	if key, isS3 := strings.CutPrefix(s.URL, "s3://"); isS3 && strings.Contains(key, "/") && single(key) {
		s.URL += "/" // VCK searched below it, or took the object of that name
		s.OrObject = !s.Mirror
	}
	if total != int(replicas) {
		return fmt.Errorf("total number of replicas: [%s] in distributionStrategy [%s], does not match number of replicas provided: [%d]",
			strconv.Itoa(total), text, replicas)
	}
	return nil
}
