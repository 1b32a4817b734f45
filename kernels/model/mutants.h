// The committed list of mistakes, and for each the scenario that must find it.
#ifndef RAILHEAD_KERNELS_MODEL_MUTANTS_H_
#define RAILHEAD_KERNELS_MODEL_MUTANTS_H_

#include "railhead/mutant.h"

namespace railhead::model {

struct MutantEntry {
  Mutant mutant;
  const char* scenario;
  const char* says;
};

constexpr MutantEntry kMutants[] = {
    {Mutant::kOneHalf, "packets-oneshot", "one half of the inbox for all epochs"},
    {Mutant::kFirstElementUnchecked, "packets-oneshot", "the epoch of the first element of a packet is not looked at"},
    {Mutant::kSecondElementUnchecked, "packets-oneshot", "the epoch of the second element of a packet is not looked at"},
    {Mutant::kSecondPacketUnchecked, "packets-oneshot", "the epochs of the second packet of a tile are not looked at"},
    {Mutant::kOnePhase, "packets-twoshot", "results travel in the slots of the contributions"},
    {Mutant::kNoWrapClear, "packets-long", "no clearing before the wrap"},
    {Mutant::kClearOnlyLastEpoch, "packets-long", "clearing in the last epoch only"},
    {Mutant::kClearBeforeRead, "packets-oneshot", "clearing before the last read"},
    {Mutant::kNoFenceAfterClear, "packets-oneshot", "no fence between clearing and the next packets"},
    {Mutant::kNoFenceInFirstEpoch, "packets-oneshot", "no fence in the first epoch after the wrap"},
    {Mutant::kEpochZero, "packets-oneshot", "epoch 0, the value of untouched memory, is used"},
    {Mutant::kEpochOne, "packets-oneshot", "epoch 1 after the wrap, in the half of the epoch before"},
    {Mutant::kNoBlockSync, "packets-oneshot", "a block counts as done before all its threads are"},
    {Mutant::kFirstBlockWritesEpoch, "packets-oneshot", "the first block writes the epoch, not the last to end"},
    {Mutant::kEpochNotKept, "packets-oneshot", "the epoch is not kept for the next kernel"},
    {Mutant::kResultWithoutFence, "packets-twoshot", "results of a two-shot pass nothing on around the wrap"},
    {Mutant::kClearByOtherThreads, "packets-rmsnorm", "tiles cleared by other threads than those that read them"},
    {Mutant::kShortLastChunk, "packets-chunks", "the last chunk of a kernel is not padded"},
    {Mutant::kPublishRelaxed, "flags-oneshot", "publish without release"},
    {Mutant::kPublishWithoutFence, "flags-oneshot", "publish without its fence"},
    {Mutant::kPublishWithoutWake, "flags-oneshot", "publish without waking"},
    {Mutant::kAwaitRelaxed, "flags-oneshot", "the first look without acquire"},
    {Mutant::kSpinRelaxed, "flags-oneshot", "spinning without acquire"},
    {Mutant::kSleepRelaxed, "flags-oneshot", "the look before sleep without acquire"},
    {Mutant::kSleepWithoutAnnouncement, "flags-oneshot", "sleep without announcement"},
    {Mutant::kSleepWithoutFence, "flags-oneshot", "sleep without its fence"},
    {Mutant::kSleepComparesFreshWord, "flags-oneshot", "the futex compares with a newer look than the one that decided"},
    {Mutant::kSleepIgnoresAbort, "flags-abort", "the futex does not watch the abort word"},
    {Mutant::kCompareWithoutWrap, "flags-oneshot", "generations compared without the wrap"},
    {Mutant::kOneBuffer, "flags-oneshot", "one buffer for all epochs"},
    {Mutant::kOneGenerationForBothPhases, "flags-twoshot", "both exchanges of an epoch have one generation"},
    {Mutant::kAwaitBeforePublish, "flags-oneshot", "await before publish"},
    {Mutant::kPublishBeforeTiles, "flags-oneshot", "publish before the tiles are written"},
    {Mutant::kAwaitOnlyTheFirst, "flags-oneshot", "waiting for rank 0 only"},
    {Mutant::kPullWithoutFirstBarrier, "flags-pull", "pull without its first barrier"},
    {Mutant::kPullWithoutLastBarrier, "flags-pull", "pull without its last barrier"},
    {Mutant::kBlockOneGeneration, "packets-pull", "both exchanges of a pull have one generation"},
    {Mutant::kBlockPublishesAlone, "packets-pull", "a block publishes before all its threads have stored"},
    {Mutant::kBlockAwaitsAlone, "packets-pull", "threads of a block go on without those that wait"},
    {Mutant::kBlockPublishRelaxed, "packets-pull", "a block publishes without release"},
    {Mutant::kBlockAwaitRelaxed, "packets-pull", "a block waits without acquire"},
    {Mutant::kBlockOffersLate, "packets-pull", "offers written behind the flag"},
    {Mutant::kBlockStepsBackAlone, "packets-pull", "stepping back without meeting again"},
    {Mutant::kBlockGenerationNotKept, "packets-pull", "the generation is not kept for the next kernel"},
    {Mutant::kNoLookAtCalls, "flags-odd", "a rank that waits does not look at what others are in"},
    {Mutant::kNoLookAtLaterCalls, "flags-odd", "a rank that waits does not look whether another is past its operation"},
    {Mutant::kTreeResultsShareAPipe, "flags-trees", "results of a tree go through the pipes of its partial sums"},
    {Mutant::kTreeReleasesBeforeItAdds, "flags-trees", "a tree gives chunks back before it has added them"},
    {Mutant::kTreeForgetsTheGroup, "flags-trees", "a chain does not add the sum of a reduce group to the total"},
    {Mutant::kOneSignature, "flags-oneshot", "one place for the signatures of all epochs"},
    {Mutant::kSignatureNotCompared, "flags-odd", "signatures of an exchange are not compared"},
    {Mutant::kPipeOneMoreSlot, "flags-rooted", "a pipe's writer has one credit too many"},
    {Mutant::kPipeReleaseBeforeRead, "flags-rooted", "a chunk is released before it is read"},
    {Mutant::kPipePublishBeforeData, "flags-rooted", "a chunk is published before it is written"},
    {Mutant::kBroadcastAwaitsOneReader, "flags-rooted", "a broadcast waits for one reader only"},
    {Mutant::kTransferSleepWithoutFence, "flags-transfers", "transfers sleep without a fence"},
    {Mutant::kTransferSleepIgnoresAbort, "flags-abort-transfers", "transfers do not watch the abort word"},
    {Mutant::kPipeSignatureNotCompared, "flags-odd", "signatures in pipes are not compared"},
    {Mutant::kRingReleasesBeforeItReads, "flags-rings", "a ring gives a chunk back before it has read it"},
    {Mutant::kRingSendsBeforeItWrites, "flags-rings", "a ring sends a chunk before it has written it"},
    {Mutant::kRingChannelsShareAPipe, "flags-rings", "all channels of a ring go through one set of pipes"},
    {Mutant::kRingCreditsNotCounted, "flags-rings", "credits that are known are never used up"},
    {Mutant::kRingTailRelaxed, "flags-rings", "a ring looks at tails without acquire"},
    {Mutant::kRingHeadRelaxed, "flags-rings-ll", "a ring looks at heads without acquire"},
    {Mutant::kLLChecksOneWord, "flags-rings-ll", "marks of a chunk's data are not looked at"},
    {Mutant::kLLNoWrapClear, "flags-rings-ll", "LL slots are not zeroed before the wrap"},
    {Mutant::kLLClearsAfterRelease, "flags-rings-ll", "LL slots are zeroed after they were given back"},
    {Mutant::kLLMarkMayBeZero, "flags-rings-ll", "a mark may be 0, the value of untouched memory"},
    {Mutant::kLLSignatureNotCompared, "flags-rings-odd", "signatures in LL chunks are not compared"},
    {Mutant::kLLTailWithoutWake, "flags-rings-ll", "an LL chunk wakes nobody"},
    {Mutant::kRecordNotInvalidated, "records", "a flight record keeps its number while it is written over"},
    {Mutant::kRecordWithoutFence, "records", "no fence behind taking a record's number away"},
    {Mutant::kRecordNumberRelaxed, "records", "a record's number without release"},
    {Mutant::kRecordDoneRelaxed, "records", "a record's end without release"},
    {Mutant::kRecordDoneReadRelaxed, "records", "a record's end read without acquire"},
    {Mutant::kRecordReadWithoutFence, "records", "no fence before the second look at a record's number"},
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_MUTANTS_H_
